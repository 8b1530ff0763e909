"""Layers with recurrent state in the batched MLX runner."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.reference.layers.mamba_layers import NEMOTRON_EXPERTS
from tests.workers.mlx.conftest import Load, load_runner
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk, DecodeRow
from workers.sampling.sample_spec import SampleSpec

GREEDY = SampleSpec(Sampling(), 0)
HYBRIDS = [
    "granitemoehybrid",
    "lfm2",
    pytest.param("nemotron_h", marks=pytest.mark.exhaustive),  # Granite's mixers in other layers
    "qwen3_5_text",
]


def tokens_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(map(int, np.random.default_rng(seed).integers(3, 500, length)))


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    experts: Any = {"layers": 4, "fields": NEMOTRON_EXPERTS} if request.param == "nemotron_h" else {}
    return make_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", family=request.param, **experts)


def test_gate_while_requests_are_preempted(hybrid: Path) -> None:
    report = run_gate(lambda: load_runner(hybrid, slots=4, context=64), longest=30, max_tokens=6, preempts=True)
    assert report.preemptions > 0
    assert report.most_active == 4
    assert min(report.shared, report.resumed, report.cancelled) > 0


def test_prefix_gate(hybrid: Path) -> None:
    report = run_prefix_gate(lambda: load_runner(hybrid, slots=3, context=128), turns=2, max_tokens=3)
    assert min(report.hits, report.in_place, report.copies) > 0


def test_a_state_moves_with_its_rows(hybrid: Path, load: Load) -> None:
    runner, prompt = load(hybrid, slots=3), tokens_of(40)
    chunk = Chunk(0, prompt[24:], 24, 24)
    runner.prefill([Chunk(0, prompt[:24], 0, 0)], [None])
    state = bytes(runner.read_state(0))
    assert len(state) == runner.capabilities.state_bytes
    assert bytes(runner.read_state(0, 24)) == state
    for length, back in ((23, 1), (25, -1)):
        with pytest.raises(ValueError, match=f"length: {back} rows of slot 0 to take back, 0 can be"):
            runner.read_state(0, length)
    runner.copy_prefix(0, 1, 24)
    expected = runner.logits(chunk)
    assert (runner.logits(Chunk(1, prompt[24:], 24, 24)) == expected).all()
    runner.copy_prefix(0, 2, 24)
    with pytest.raises(ValueError, match="slot: 2 has rows without a recurrent state"):
        runner.decode([DecodeRow(2, 5, 24, 24, GREEDY)])
    with pytest.raises(ValueError, match="without a recurrent state"):
        runner.read_state(2)
    runner.write_state(2, state)
    assert (runner.logits(Chunk(2, prompt[24:], 24, 24)) == expected).all()
    with pytest.raises(ValueError, match="1 bytes, a recurrent state has"):
        runner.write_state(2, b"x")
    with pytest.raises(ValueError, match="rows of slot 1 to take back"):
        runner.logits(Chunk(1, prompt[30:], 30, 30))


def test_rows_of_a_decode_step_are_taken_back(hybrid: Path, load: Load) -> None:
    """They are computed one after the other: the states are those of steps of one row."""
    runner, tokens = load(hybrid, slots=4, dtype="bfloat16"), tokens_of(40)
    most = runner.capabilities.rollback_rows
    assert (most, runner.capabilities.decode_rows) == (8, 12)
    runner.prefill([Chunk(0, tokens[:20], 0, 0), Chunk(1, tokens[:20], 0, 0)], [None, None])
    states = [bytes(runner.read_state(0))]
    for at in range(20, 24):
        runner.decode([DecodeRow(0, tokens[at], at, at, GREEDY)])
        states.append(bytes(runner.read_state(0)))

    def drafted(start: int, drafts: tuple[int, ...]) -> list[int | None]:
        rows = [DecodeRow(1, token, start + at, start + at, GREEDY) for at, token in enumerate(drafts)]
        return runner.decode([DecodeRow(2, 5, 0, 0, GREEDY), *rows])[1:]

    before = runner.memory()["kv"]
    drafted(20, (tokens[20], 7, 8, 9))
    assert runner.memory()["kv"] > before
    runner.reset(2)
    second = drafted(21, tokens[21:24])  # the drafts were wrong, and are overwritten
    assert bytes(runner.read_state(1)) == states[4]
    assert [bytes(runner.read_state(1, length)) for length in range(21, 25)] == states[1:]
    for length, back in ((20, 4), (25, -1)):
        with pytest.raises(ValueError, match=f"length: {back} rows of slot 1 to take back, 3 can be"):
            runner.read_state(1, length)
    runner.copy_prefix(1, 3, 22)
    assert bytes(runner.read_state(3)) == states[2]
    runner.copy_prefix(1, 1, 22)
    assert bytes(runner.read_state(1)) == states[2]
    runner.reset(2)
    assert drafted(22, tokens[22:24]) == second[1:]
    assert runner.decode([DecodeRow(3, tokens[22], 22, 22, GREEDY)]) == second[1:2]
    with pytest.raises(ValueError, match=f"a step takes {most}"):
        runner.decode([DecodeRow(0, 1, 24 + at, 24 + at, GREEDY) for at in range(9)])


def test_gate_with_drafts(hybrid: Path) -> None:
    report = run_gate(
        lambda: load_runner(hybrid, slots=4, context=96), requests=8, longest=30, max_tokens=12, speculates=True
    )
    assert report.drafted > 10
    assert 0 < report.accepted < report.drafted


def test_a_reset_slot_has_the_initial_state(hybrid: Path, load: Load) -> None:
    runner, chunk = load(hybrid, slots=2), Chunk(0, tokens_of(20), 0, 0)
    cold = runner.logits(chunk)
    initial = bytes(len(runner.read_state(0)))
    clears: list[Callable[[], None]] = [
        lambda: runner.reset(0),
        lambda: runner.copy_prefix(0, 0, 0),
        lambda: runner.copy_prefix(1, 0, 0),
    ]
    for clear in clears:
        assert runner.read_state(0) != initial
        clear()
        assert runner.read_state(0) == initial
        assert (runner.logits(chunk) == cold).all()


def test_states_that_a_failed_call_has_lost_are_initial(
    hybrid: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(hybrid, slots=2)
    runner.prefill([Chunk(0, tokens_of(20), 0, 0)], [None])

    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(mx, "eval", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.prefill([Chunk(1, tokens_of(20), 0, 0)], [None])
    monkeypatch.undo()
    assert not any(runner.read_state(0))
    with pytest.raises(ValueError, match="start: 20 leaves a gap after 0 rows"):
        runner.prefill([Chunk(0, (5,), 20, 20)], [None])


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.parametrize("options", [{"quantized_bits": 4, "tied": False}, {"dtype": "bfloat16"}], ids=["4-bit", "16"])
def test_rows_are_exact_with_other_weights(tmp_path: Path, load: Load, family: str, options: dict[str, Any]) -> None:
    if family == "lfm2":
        options = {name: value for name, value in options.items() if name != "tied"}
    path = make_checkpoint(tmp_path / "model", family=family, **options)
    runner, prompt = load(path, slots=3), tokens_of(12, seed=2)
    whole = runner.logits(Chunk(0, prompt, 0, 0))
    assert np.isfinite(whole).all()
    runner.prefill([Chunk(1, prompt[:5], 0, 0), Chunk(2, prompt[:9], 0, 0)], [None, None])
    parts = [runner.logits(Chunk(1, (token,), at, at)) for at, token in enumerate(prompt[5:], 5)]
    assert (np.concatenate(parts) == whole[5:]).all()


def test_other_places_of_attention_are_refused(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path / "model", family="qwen3_5_text", layers=3)
    config = json.loads((path / "config.json").read_text())
    assert config["layer_types"][1] == "full_attention"
    load(path)
    (path / "config.json").write_text(
        json.dumps(config | {"layer_types": ["full_attention", "linear_attention", "full_attention"]})
    )
    with pytest.raises(CheckpointError, match="layer_types: is supported by the MLX backend with attention in every"):
        load(path)
