"""The built-in model with too little room and requests of several classes: each answer is that of the request alone."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.commands import Submit
from protocol.events import Delta, Finished, Step
from protocol.request import ChatInput, Grammar, Limits, Message, Sampling, TextInput
from protocol.scheduling import PriorityClass
from tests.workers.process.harness.gateway_peer import scripted
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.local_model import LocalModel
from workers.process.backends import load_runner
from workers.process.output_processor import EngineOutput, OutputProcessor
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

BUILTIN = Path(__file__).parents[3] / "models" / "builtin"
CONTEXT = 160
SCHEMA = '{"type":"object","properties":{"city":{"type":"string","maxLength":40}},"required":["city"]}'
CHAT = ChatInput((Message("user", "Tell me about the sea."),), now=1_763_703_600)


def submit(stream: int, source: Any, priority_class: PriorityClass, sampling: Sampling, **fields: Any) -> Submit:
    limits = Limits(max_tokens=fields.pop("max_tokens", 100), stop=fields.pop("stop", ()), ignore_eos=True)
    return Submit(stream, f"r{stream}", source, sampling, limits, priority_class=priority_class, **fields)


def seeded(seed: int, **fields: Any) -> Sampling:
    return Sampling(temperature=1.0, top_p=0.95, seed=seed, **fields)


REQUESTS = [
    *(submit(choice, CHAT, "low", seeded(choice)) for choice in range(3)),  # as with n = 3
    submit(3, TextInput("Once upon a time"), "low", seeded(7, logprobs=3)),
    submit(4, CHAT, "low", seeded(9), grammar=Grammar("json_schema", SCHEMA, "response_format")),
    submit(5, TextInput("One, two, three"), "low", seeded(11, frequency_penalty=0.5), stop=("the", "qu")),
    submit(6, CHAT, "normal", seeded(13, repetition_penalty=1.2), max_tokens=40),
    submit(7, TextInput("The capital of France is"), "high", Sampling(logprobs=1), max_tokens=30),
    submit(8, CHAT, "high", seeded(17, logprobs=2), max_tokens=30),
]


@pytest.fixture
def tokenizer() -> CheckpointTokenizer:
    return CheckpointTokenizer.from_dir(BUILTIN)


@pytest.fixture
def grammars(tokenizer: CheckpointTokenizer, runner: Runner) -> Iterator[GrammarCompiler]:
    with closing(GrammarCompiler(partial(tokenizer_vocabulary, tokenizer, runner.capabilities.vocab_size))) as made:
        yield made


@pytest.fixture(params=["iree", pytest.param("mlx", marks=pytest.mark.exhaustive)])
def runner(request: pytest.FixtureRequest, cache_dir: Path) -> Iterator[Runner]:
    pytest.importorskip("iree.runtime" if request.param == "iree" else "mlx.core")
    spec = scripted(
        backend=request.param, model_path=str(BUILTIN), max_batch_size=3, context=CONTEXT, cache_dir=str(cache_dir)
    )
    made = load_runner(spec, lambda phase, done, total: None)
    yield made
    made.close()


def test_answers_are_those_of_undisturbed_runs(
    runner: Runner, tokenizer: CheckpointTokenizer, grammars: GrammarCompiler
) -> None:
    alone = LocalModel(BatchEngine(runner, max_queue=1, step_tokens=64), tokenizer, grammars=grammars)
    expected = [alone.generate(each.input, each.sampling, each.limits, grammar=each.grammar) for each in REQUESTS]

    engine = BatchEngine(runner, max_queue=99, step_tokens=64, kv_tokens=CONTEXT, reserved_rows=8)
    processor = OutputProcessor(
        tokenizer,
        max_live=99,
        clock=lambda: 0.0,
        context=CONTEXT,
        grammars=grammars,
        vocab_size=runner.capabilities.vocab_size,
    )
    waiting, deltas, ends = list(REQUESTS), dict[int, list[Delta]](), dict[int, Finished]()
    steps = 0
    while waiting or not engine.idle:
        while waiting and steps >= 4 * waiting[0].stream:  # some come while others run
            result = processor.admit(waiting.pop(0))
            assert isinstance(result.request, EngineRequest)
            engine.submit(result.request)
        steps += 1
        processed = processor.process(EngineOutput(engine.step(), (), (), engine.gauges()))
        stopped = tuple(end for stream in processed.finish if (end := engine.finish(stream)) is not None)
        frames = processed.frames + processor.process(EngineOutput(None, stopped, (), engine.gauges())).frames
        for frame in frames:
            if isinstance(frame, Step):
                for delta in frame.deltas:
                    deltas.setdefault(delta.stream, []).append(delta)
            else:
                assert isinstance(frame, Finished)
                assert frame.stream not in ends
                ends[frame.stream] = frame
    assert engine.gauges().preemptions >= 5
    for request, wanted in zip(REQUESTS, expected, strict=True):
        got, finished = deltas[request.stream], ends[request.stream]
        assert tuple(token for delta in got for token in delta.tokens) == wanted.tokens
        assert "".join(delta.text for delta in got) + finished.text == wanted.text
        assert tuple(each for delta in got for each in delta.logprobs) == wanted.logprobs
        usage = finished.usage
        assert (finished.reason, usage.prompt_tokens, usage.completion_tokens) == (
            wanted.reason,
            wanted.prompt_tokens,
            wanted.completion_tokens,
        )
