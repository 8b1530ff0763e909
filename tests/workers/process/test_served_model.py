"""A model served by a worker process answers like a local model: same tokens, same text."""

import asyncio
from pathlib import Path

import pytest

from protocol.commands import Stop, Submit
from protocol.events import Finished, Hello, Loading
from protocol.request import ChatInput, Limits, Message, Sampling, TextInput, TokensInput
from tests.checkpoints import make_checkpoint
from tests.workers.process.harness.gateway_peer import Peer, scripted, worker
from workers.local_model import GenerationResult, LocalModel
from workers.process.loading import load
from workers.process.spec import WorkerSpec

SEEDED = Sampling(temperature=1.0, top_k=40, seed=11)
REQUESTS = [
    Submit(1, "greedy", TextInput("The capital of France is"), Sampling(), Limits(max_tokens=24)),
    Submit(2, "seeded", TextInput("The capital of France is"), SEEDED, Limits(max_tokens=24)),
    Submit(3, "chat", ChatInput((Message("user", "hi 😀"),)), SEEDED, Limits(max_tokens=24)),
    Submit(4, "stop", TextInput("One, two"), Sampling(), Limits(max_tokens=40, stop=("e", "th"))),
    Submit(5, "tokens", TokensInput((5, 6, 7)), Sampling(), Limits(max_tokens=9, ignore_eos=True)),
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> WorkerSpec:
    pytest.importorskip("mlx.core")
    path = make_checkpoint(tmp_path_factory.mktemp("model"), "qwen2")
    return scripted(backend="mlx", model_name="tiny", model_path=str(path), max_batch_size=4, context=256)


@pytest.fixture(scope="module")
def reference(spec: WorkerSpec) -> dict[int, GenerationResult]:
    with LocalModel.of(load(spec, lambda *_: None)) as model:
        return {each.stream: model.generate(each.input, each.sampling, each.limits) for each in REQUESTS}


def test_a_worker_answers_like_a_local_model(spec: WorkerSpec, reference: dict[int, GenerationResult]) -> None:
    """All requests at once through four slots; then one in two pieces, the second of which resumes the first."""

    async def scenario(peer: Peer) -> None:
        await peer.ready()
        hello = await peer.expect(Hello)
        assert (hello.backend, hello.model, hello.context) == ("mlx", "tiny", 256)
        assert any(isinstance(frame, Loading) for frame in peer.frames)
        peer.send(*REQUESTS)
        for each in REQUESTS:
            ended = await peer.terminal(each.stream)
            expected = reference[each.stream]
            assert isinstance(ended, Finished), ended
            assert (peer.text(each.stream), ended.reason) == (expected.text, expected.reason)
            assert tuple(peer.tokens(each.stream)) == expected.tokens
        first = REQUESTS[1]
        delivered = reference[2].tokens[:7]
        peer.send(Submit(12, "resumed", first.input, first.sampling, first.limits, delivered))
        assert isinstance(await peer.terminal(12), Finished)
        assert delivered + tuple(peer.tokens(12)) == reference[2].tokens
        peer.send(Stop())
        await peer.bye()
        assert await peer.exit_code() == 0

    async def run() -> None:
        async with worker(spec) as peer:
            await scenario(peer)

    asyncio.run(run())


def test_a_model_without_a_tokenizer_takes_tokens_only(spec: WorkerSpec, tmp_path: Path) -> None:
    bare = make_checkpoint(tmp_path, "qwen2")
    (bare / "tokenizer.json").unlink()
    loaded = load(scripted(backend="mlx", model_path=str(bare), max_batch_size=1, context=64), lambda *_: None)
    assert loaded.tokenizer is None
    loaded.engine.close()
