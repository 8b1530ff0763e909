"""Models with a recurrent state: the promises of all models, and those about the state."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.reference.layers.mamba_layers import NEMOTRON_LATENTS
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import GREEDY, TOKENS, check_logits
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner

MODELS = [
    pytest.param(("lfm2", {"dtype": "float32"}), id="lfm2", marks=pytest.mark.exhaustive),
    pytest.param(("qwen3_5_text", {"dtype": "bfloat16", "quantize": "int8", "mtp": True}), id="qwen3_5"),
    pytest.param(
        ("granitemoehybrid", {"dtype": "bfloat16", "quantize": "int4"}), id="granite", marks=pytest.mark.exhaustive
    ),
    pytest.param(
        ("nemotron_h", {"dtype": "bfloat16", "quantize": "int8"}), id="nemotron_h", marks=pytest.mark.exhaustive
    ),
]
FIELDS = {"qwen3_5_text": {"mtp_num_hidden_layers": 1}, "nemotron_h": NEMOTRON_LATENTS}
LAYERS = {"nemotron_h": 4}
"""One of each kind, where a layer is a mixer or an MLP."""


class Kept:
    """Stands for a runner that several gates use, each of which closes it."""

    def __init__(self, runner: IreeRunner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def close(self) -> None:
        for slot in range(self._runner.capabilities.slots):
            self._runner.reset(slot)


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: Any, load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IreeRunner]:
    family, options = request.param
    directory = tmp_path_factory.mktemp("hybrid")
    path = make_checkpoint(directory, family, layers=LAYERS.get(family, 2), fields=FIELDS.get(family))
    runner = load(path, **options)
    fetch_all(runner, "decode_1", "mtp_8", "rows")
    yield runner
    runner.close()


@pytest.fixture
def hybrid(loaded: IreeRunner) -> IreeRunner:
    Kept(loaded).close()
    return loaded


def test_logits_are_bitwise_identical(hybrid: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any decode graph, beside any neighbours, prefilled in any chunks."""
    assert hybrid.capabilities.exact_rows
    check_logits(hybrid, monkeypatch)


def test_prefix_gate(hybrid: IreeRunner) -> None:
    made: Any = lambda: Kept(hybrid)  # noqa: E731
    assert run_prefix_gate(made).hits > 0


def test_a_state_goes_along_with_all_rows_and_by_bytes(hybrid: IreeRunner) -> None:
    config, capabilities = hybrid._plan.config, hybrid.capabilities
    assert capabilities.state_bytes == 4 * config.state_values > 0
    versions = 1 + capabilities.rollback_rows
    assert hybrid.memory()["states"] == capabilities.slots * versions * capabilities.state_bytes
    hybrid.prefill([Chunk(0, TOKENS[:20], 0, 0)], [None])
    state, rows = bytes(hybrid.read_state(0)), bytes(hybrid.read_rows(0, 0, 20))
    (expected,) = hybrid.prefill([Chunk(0, TOKENS[20:33], 20, 20)], [GREEDY])
    hybrid.write_rows(1, 0, rows)
    row = DecodeRow(1, TOKENS[20], 20, 20, GREEDY)
    with pytest.raises(ValueError, match="slot: 1 has rows without a recurrent state"):
        hybrid.decode([row])
    hybrid.write_state(1, state)
    hybrid.copy_prefix(1, 2, 20)
    assert bytes(hybrid.read_state(2)) == state
    for slot in (1, 2):
        assert hybrid.prefill([Chunk(slot, TOKENS[20:33], 20, 20)], [GREEDY]) == [expected]
        assert bytes(hybrid.read_state(slot)) == bytes(hybrid.read_state(0)) != state
    hybrid.copy_prefix(0, 3, 10)
    with pytest.raises(ValueError, match="slot: 3 has rows without a recurrent state"):
        hybrid.prefill([Chunk(3, TOKENS[10:12], 10, 10)], [None])
    with pytest.raises(ValueError, match="start: 1 rows of slot 0 to take back, 0 can be"):
        hybrid.prefill([Chunk(0, TOKENS[32:33], 32, 32)], [None])
    with pytest.raises(ValueError, match="a recurrent state has"):
        hybrid.write_state(3, state[:-4])


def test_rows_of_a_decode_step_are_taken_back(hybrid: IreeRunner) -> None:
    most = hybrid.capabilities.rollback_rows
    assert most == 8
    hybrid.prefill([Chunk(0, TOKENS[:20], 0, 0)], [None])
    states = [bytes(hybrid.read_state(0))]
    for at in range(20, 24):
        hybrid.decode([DecodeRow(0, TOKENS[at], at, at, GREEDY)])
        states.append(bytes(hybrid.read_state(0)))
    hybrid.prefill([Chunk(1, TOKENS[:20], 0, 0)], [None])

    def drafted(start: int, tokens: tuple[int, ...]) -> list[int | None]:
        rows = [DecodeRow(1, token, start + at, start + at, GREEDY) for at, token in enumerate(tokens)]
        return hybrid.decode([DecodeRow(2, 5, 0, 0, GREEDY), *rows])[1:]

    first = drafted(20, (TOKENS[20], 7, 8, 9))
    hybrid.reset(2)
    second = drafted(21, TOKENS[21:24])  # the drafts were wrong, and are overwritten
    assert bytes(hybrid.read_state(1)) == states[4]
    assert [bytes(hybrid.read_state(1, length)) for length in range(21, 25)] == states[1:], "it stays as it is"
    for length, back in ((20, 4), (25, -1)):
        with pytest.raises(ValueError, match=f"length: {back} rows of slot 1 to take back, 3 can be"):
            hybrid.read_state(1, length)
    hybrid.copy_prefix(1, 3, 22)
    assert bytes(hybrid.read_state(3)) == states[2]
    hybrid.copy_prefix(1, 1, 22)
    assert bytes(hybrid.read_state(1)) == states[2]
    hybrid.reset(2)
    assert drafted(22, TOKENS[22:24]) == second[1:]
    assert hybrid.decode([DecodeRow(3, TOKENS[22], 22, 22, GREEDY)]) == second[1:2]
    assert len(first) == 4
    with pytest.raises(ValueError, match=f"a step takes {most}"):
        hybrid.decode(
            [DecodeRow(0, 1, 24 + at, 24 + at, GREEDY) for at in range(8)] + [DecodeRow(0, 1, 32, 32, GREEDY)]
        )


def test_gate_with_drafts(hybrid: IreeRunner) -> None:
    made: Any = lambda: Kept(hybrid)  # noqa: E731
    report = run_gate(made, requests=32, max_tokens=16, speculates=True)
    assert (report.requests, report.most_active) == (32, 8)
    assert min(report.cancelled, report.resumed, report.reported, report.prompts_reported) > 0
    assert report.drafted > 50
    assert 0 < report.accepted < report.drafted


def test_drafts_of_the_head_change_no_answer(hybrid: IreeRunner) -> None:
    """Most are rejected, and taken back from the recurrent state as well."""
    if hybrid.draft_head is None:
        pytest.skip("the model has no head")
    made: Any = lambda: Kept(hybrid)  # noqa: E731
    report = run_gate(made, requests=16, by_head=True)
    assert report.drafted > 50
    assert report.accepted < 0.5 * report.drafted


def test_a_head_that_is_right_is_believed(load: Load, tmp_path: Path) -> None:
    """The model predicts from a row's token alone, and the head as the model: their layers add nothing."""
    path = make_checkpoint(tmp_path, "qwen3_5_text", fields=FIELDS["qwen3_5_text"])
    make_right(path)
    runner = load(path, dtype="bfloat16", quantize="int8", mtp=True)
    fetch_all(runner, "mtp_8", "rows")
    report = run_gate(lambda: runner, requests=12, by_head=True)
    assert report.drafted > 30
    assert report.accepted > 0.9 * report.drafted


def make_right(path: Path) -> None:
    """Leave the tokens to embeddings, norms and the matrix of the logits."""
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) or "pre_fc_norm" in name:
            tensors[name] = np.zeros_like(tensor)
    hidden = len(tensors["mtp.norm.weight"])
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"]
    tensors["mtp.fc.weight"] = np.eye(hidden, 2 * hidden, dtype=np.float32)
    write_safetensors(path / "model.safetensors", tensors)


def test_a_reset_slot_has_the_initial_state(hybrid: IreeRunner) -> None:
    initial = bytes(hybrid.read_state(4))
    assert not np.frombuffer(initial, np.float32).any()
    hybrid.decode([DecodeRow(4, 7, 0, 0, GREEDY), DecodeRow(5, 8, 0, 0, GREEDY)])
    assert bytes(hybrid.read_state(4)) != initial
    hybrid.copy_prefix(5, 5, 0)
    hybrid.reset(4)
    assert bytes(hybrid.read_state(4)) == bytes(hybrid.read_state(5)) == initial
    hybrid.write_state(4, bytes(np.ones(len(initial) // 4, np.float32)))  # of a slot without rows
    hybrid.reset(4)
    assert bytes(hybrid.read_state(4)) == initial


def test_a_call_that_is_refused_takes_nothing_back(hybrid: IreeRunner) -> None:
    hybrid.prefill([Chunk(0, TOKENS[:20], 0, 0)], [None])
    hybrid.decode([DecodeRow(0, TOKENS[20], 20, 20, GREEDY), DecodeRow(0, 7, 21, 21, GREEDY)])
    state, chunk = bytes(hybrid.read_state(0)), Chunk(0, TOKENS[21:22], 21, 21)
    with pytest.raises(ValueError, match="specs: 0 for 1 chunks"):
        hybrid.prefill([chunk], [])
    with pytest.raises(ValueError, match="targets: 2 for 1 rows"):
        hybrid.prefill_reported(chunk, None, TOKENS[:2])
    assert bytes(hybrid.read_state(0)) == state


def test_heads_that_are_no_whole_vectors_are_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3_5_text", fields={"linear_value_head_dim": 24})
    with pytest.raises(CheckpointError, match="linear_value_head_dim: 24 is no multiple of 16"):
        load(path)
    assert ModelConfig.from_dir(path).delta is not None
    path = make_checkpoint(tmp_path / "mamba", "nemotron_h", fields={"ssm_state_size": 24})
    with pytest.raises(CheckpointError, match="ssm_state_size: 24 is no multiple of 16"):
        load(path)
