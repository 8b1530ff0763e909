"""Models that only mlx-lm describes run alone, with the tokens of mlx-lm."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import utils
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as kinds

from protocol.request import Sampling
from protocol.scheduling import Urgency
from tests.gate import alone, run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.mlx.alone.lone_checkpoints import FAMILIES, VOCAB, make_lone_checkpoint
from tests.workers.mlx.conftest import quiet
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.lone_config import LoneConfig
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.load_options import LoadOptions
from workers.mlx.alone.caches import UNBOUNDED, SequenceCaches
from workers.mlx.alone.runner import LoneRunner
from workers.process.backends import load_runner
from workers.sampling.sample_spec import SampleSpec

GREEDY = SampleSpec(Sampling(), 0)
PROMPT = tuple((37 * at) % 500 + 5 for at in range(45))


def load_lone(path: Path, context: int = 128, **options: Any) -> LoneRunner:
    chosen = LoadOptions(device="cpu", slots=1, context=context, cache_dir=path, **options)
    return LoneRunner.load(path, LoneConfig.from_dir(path), chosen, quiet)


@pytest.fixture(scope="module")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lone_checkpoint(tmp_path_factory.mktemp("falcon"), "falcon_h1")


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_mlx_lm(tmp_path: Path, family: str) -> None:
    path = make_lone_checkpoint(tmp_path, family)
    runner = load_lone(path)
    tokens = alone(runner, EngineRequest(1, PROMPT, Sampling(), 12))
    runner.close()
    with mx.stream(mx.Device(mx.cpu)):
        model, _ = utils.load_model(path)
        steps = generate_step(mx.array(PROMPT), model, max_tokens=12)
        assert tokens == [int(token) for token, _ in steps]
    assert len(set(tokens)) > 2


def test_weights_that_only_mlx_lm_reads_are_loaded(tmp_path: Path) -> None:
    """A shard without an index, and a mode of quantization."""
    path = make_lone_checkpoint(tmp_path, "mamba2")
    (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors")
    config = json.loads((path / "config.json").read_text())
    quantization = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config | {"quantization": quantization}))
    runner = load_runner(scripted(backend="mlx", device="cpu", model_path=str(path), context=128), quiet)
    assert isinstance(runner, LoneRunner)
    runner.close()


@pytest.mark.parametrize("family", ["mamba2", "deepseek_v2", "falcon_h1", "gpt_oss"])
def test_prefix_gate(tmp_path: Path, family: str) -> None:
    path = make_lone_checkpoint(tmp_path, family)
    report = run_prefix_gate(lambda: load_lone(path), turns=2, max_tokens=3)
    assert report.hits > 2
    assert report.in_place > 2


def test_gate_with_resumed_answers(falcon: Path) -> None:
    report = run_gate(lambda: load_lone(falcon), longest=40, max_tokens=6)
    assert report.most_active == 1
    assert min(report.cancelled, report.resumed, report.stopped, report.masked, report.reported, report.grammars) > 0
    assert report.prompts_reported > 3


def test_a_preempted_answer_is_computed_again_to_the_bit(falcon: Path) -> None:
    runner = load_lone(falcon)
    request = EngineRequest(1, PROMPT, Sampling(temperature=1.0, seed=3, logprobs=2), 12)
    expected = alone(runner, request)
    resumed = replace(request, resume=tuple(expected[:7]))
    assert alone(runner, resumed) == expected[7:]
    engine = BatchEngine(runner, max_queue=4, step_tokens=64)
    engine.submit(request)
    got: list[int] = []
    while not engine.idle:
        if len(got) == 5:
            engine.submit(EngineRequest(2, PROMPT[:9], Sampling(), 3, urgency=Urgency.of("high", 0)))
        got += [token.token for token in engine.step().tokens if token.stream == 1]
    assert got == expected
    engine.close()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_state_is_written_back_to_the_bit(falcon: Path, dtype: Any) -> None:
    runner = load_lone(falcon, dtype=dtype)
    assert runner.capabilities.dtype == dtype
    runner.prefill([Chunk(0, PROMPT[:32], 0, 0)], [None])
    state = runner.read_state(0)
    assert len(state) == runner.capabilities.state_bytes
    chunk = Chunk(0, PROMPT[32:], 32, 32)
    expected = runner.logits(chunk)
    runner.copy_prefix(0, 0, 32)
    with pytest.raises(ValueError, match="without a recurrent state"):
        runner.logits(chunk)
    runner.write_state(0, state)
    assert (runner.logits(chunk) == expected).all()
    runner.close()


def test_a_window_that_is_full_is_a_state(tmp_path: Path) -> None:
    runner = load_lone(make_lone_checkpoint(tmp_path, "gpt_oss"))
    runner.prefill([Chunk(0, PROMPT[:32], 0, 0)], [None])
    state = runner.read_state(0)
    for at, token in enumerate(PROMPT[32:], 32):  # the window rotates
        runner.decode([DecodeRow(0, token, at, at, GREEDY)])
    runner.copy_prefix(0, 0, 32)
    runner.write_state(0, state)
    warm = runner.logits(Chunk(0, PROMPT[32:], 32, 32))
    runner.reset(0)
    runner.prefill([Chunk(0, PROMPT[:32], 0, 0)], [None])
    assert (runner.logits(Chunk(0, PROMPT[32:], 32, 32)) == warm).all()
    runner.close()


def test_the_state_of_a_window_is_no_longer_than_the_context(tmp_path: Path) -> None:
    path = make_lone_checkpoint(tmp_path, "gpt_oss", sliding_window=1 << 20)
    runner = load_lone(path, context=300)
    runner.prefill([Chunk(0, PROMPT[:1] * 298, 0, 0)], [None])
    runner.decode([DecodeRow(0, PROMPT[0], 298, 298, GREEDY)])
    runner.decode([DecodeRow(0, PROMPT[0], 299, 299, GREEDY)])
    row_bytes = 2 * 2 * 8 * 4  # keys and values, heads, lanes, bytes of a value
    assert len(runner.read_state(0)) == runner.capabilities.state_bytes < 4 * 300 * row_bytes
    runner.close()


def test_a_call_that_fails_leaves_no_rows(falcon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load_lone(falcon)
    runner.prefill([Chunk(0, PROMPT[:8], 0, 0)], [None])
    monkeypatch.setattr(mx, "eval", fails := lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.prefill([Chunk(0, PROMPT[8:], 8, 8)], [None])
    monkeypatch.undo()
    assert fails is not mx.eval
    with pytest.raises(ValueError, match="start: 8 leaves a gap after 0 rows"):
        runner.prefill([Chunk(0, PROMPT[8:], 8, 8)], [None])
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.reset(0)


def test_positions_are_rows(falcon: Path) -> None:
    runner = load_lone(falcon)
    with pytest.raises(ValueError, match="position: 3 is not row 0"):
        runner.prefill([Chunk(0, PROMPT[:8], 0, 3)], [None])
    with pytest.raises(ValueError, match="tokens after it are left out"):
        runner.prefill([Chunk(0, PROMPT[:8], 0, 0, positions=(*range(7), 40))], [None])
    for call in (lambda: runner.read_rows(0, 0, 1), lambda: runner.write_rows(0, 0, b"x")):
        with pytest.raises(ValueError, match="cannot be read or written"):
            call()
    runner.close()


def test_weights_are_quantized_while_loading(tmp_path: Path) -> None:
    path = make_lone_checkpoint(tmp_path, "internlm3", hidden_size=64, head_dim=16)
    plain, quantized = load_lone(path), load_lone(path, quantize="int8")
    assert quantized.capabilities.quantization == "int8"
    assert quantized.memory()["weights"] < plain.memory()["weights"] / 2
    tokens = [alone(each, EngineRequest(1, PROMPT, Sampling(), 4)) for each in (plain, quantized)]
    assert tokens[0][0] == tokens[1][0]
    for each in (plain, quantized):
        each.close()


def test_no_matrix_with_whole_groups_is_refused(tmp_path: Path) -> None:
    narrow = make_lone_checkpoint(tmp_path, "internlm3", intermediate_size=32)
    with pytest.raises(CheckpointError, match="none can be made int4"):
        load_lone(narrow, quantize="int4")


def test_what_mlx_lm_cannot_load_is_refused(tmp_path: Path) -> None:
    path = make_lone_checkpoint(tmp_path, "mamba2")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"cannot be loaded by mlx-lm: ValueError: Missing \d+ parameters"):
        load_lone(path)
    (path / "config.json").write_text(json.dumps({"model_type": "mamba2", "torch_dtype": "float32"}))
    with pytest.raises(CheckpointError, match="cannot be loaded by mlx-lm: TypeError"):
        load_lone(path)
    (path / "model.safetensors").rename(path / "other.safetensors")
    with pytest.raises(CheckpointError, match="has no weights"):
        load_lone(path)


def test_a_model_that_fails_to_compute_is_refused(falcon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("[gather_mm] not on this device")

    monkeypatch.setattr("workers.mlx.alone.runner._probe", fail)
    with pytest.raises(CheckpointError, match=r"falcon_h1 cannot be computed by mlx-lm on cpu: ValueError: \[gath"):
        load_lone(falcon)


def test_a_cache_of_an_unknown_kind_has_no_bound() -> None:
    class OtherCache(kinds.KVCache):  # type: ignore[misc]
        """As a model may bring one."""

    class Model:
        def make_cache(self) -> list[Any]:
            return [kinds.KVCache(), kinds.ConcatenateKVCache(), OtherCache(), kinds.QuantizedKVCache()]

    caches = SequenceCaches(Model())
    assert caches.state_bytes(512, 4096) == UNBOUNDED
    assert VOCAB == 512
