"""The IREE runner's own promises: the cache stays where it is, slots do not see each other, bad rows are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.sampled import sampled
from tests.workers.hidden_gate import run_hidden_gate
from tests.workers.iree.conftest import CONTEXT, Load, fetch_all
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.errors import LoadRefused
from workers.iree.build.weight_archive import Archive
from workers.iree.device.device import Device
from workers.iree.runner import IreeRunner
from workers.sampling.logprobs import report_rows
from workers.sampling.sample_spec import LogitEdits, SampleSpec

PROMPT = tuple(range(10, 50))
SEEDED = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=11)


def generate(runner: IreeRunner, slot: int, prompt: tuple[int, ...], count: int, sampling: Any = None) -> list[int]:
    sampling = sampling or Sampling()
    (first,) = runner.prefill([Chunk(slot, prompt, 0, 0)], [SampleSpec(sampling, len(prompt))])
    assert first is not None
    tokens = [first]
    for at in range(len(prompt), len(prompt) + count - 1):
        tokens += sampled(runner.decode([DecodeRow(slot, tokens[-1], at, at, SampleSpec(sampling, at + 1))]))
    return tokens


def reported(runner: IreeRunner, slot: int, size: int, sampling: Sampling, count: int) -> tuple[list[Any], list[int]]:
    """Compute PROMPT in chunks of a size, with log-probabilities; return these and the tokens after it."""
    runner.reset(slot)
    values: list[Any] = []
    token = None
    for at in range(0, len(PROMPT), size):
        tokens = PROMPT[at : at + size]
        spec = SampleSpec(sampling, len(PROMPT)) if at + len(tokens) == len(PROMPT) else None
        token, some = runner.prefill_reported(Chunk(slot, tokens, at, at), spec, PROMPT[at + 1 : at + 1 + size])
        values += some
    assert token is not None
    (first,) = runner.logprobs([0])
    generated = [token]
    for at in range(len(PROMPT), len(PROMPT) + count - 1):
        generated += sampled(runner.decode([DecodeRow(slot, generated[-1], at, at, SampleSpec(sampling, at + 1))]))
    return [*values, first], generated


def test_a_reported_prompt_has_the_rows_and_the_tokens_of_any_other(load: Load, runner: IreeRunner) -> None:
    """By a prefill graph and its head, by the scoring graph, and before there is a graph for either or for reports."""
    sampling = structs.replace(SEEDED, logprobs=0)
    expected = generate(runner, 0, PROMPT, 4, sampling)
    values = report_rows(runner.logits(Chunk(1, PROMPT, 0, 0)), [*PROMPT[1:], expected[0]])
    assert runner.reported_rows == (8, CONTEXT)
    for slot, size in enumerate((1, 7, 8, 33, 40), 2):
        assert reported(runner, slot, size, sampling, 4) == (values, expected)
    few = load()
    try:
        assert few.reported_rows == (4,)
        for size in (4, 40):
            assert reported(few, 3, size, sampling, 4) == (values, expected)
    finally:
        few.close()


def test_a_reported_chunk_with_bad_rows_or_targets_is_refused(runner: IreeRunner) -> None:
    runner.prefill([Chunk(2, PROMPT[:10], 0, 0)], [None])
    window = runner._buffers.kv[0].window
    assert window is not None
    window[:, :, 2] = np.float32(np.nan).view(np.uint32)
    with pytest.raises(NotFiniteError):
        runner.prefill_reported(Chunk(2, PROMPT[10:14], 10, 10), None, PROMPT[11:15])
    for targets in (PROMPT[1:3], PROMPT[1:6], (1, 2, 3, 512)):
        with pytest.raises(ValueError, match="targets"):
            runner.prefill_reported(Chunk(3, PROMPT[:4], 0, 0), None, targets)


def test_capabilities_and_memory(runner: IreeRunner) -> None:
    capabilities = runner.capabilities
    assert (capabilities.backend, capabilities.device, capabilities.dtype) == ("iree", "local-task", "float32")
    assert (capabilities.slots, capabilities.context, capabilities.vocab_size) == (8, CONTEXT, 512)
    assert capabilities.prefill_chunks == (32, 64, 96)
    memory = runner.memory()
    # 2 layers of keys and values, 2 heads of 16 lanes, 8 slots of 96 rows in tiles of 64, and a tile to spare
    assert memory["kv"] == 2 * 2 * 8 * 2 * (128 + 64) * 16 * 4
    assert memory["weights"] > 100_000


def test_steps_update_the_cache_in_place(runner: IreeRunner) -> None:
    """A copy of the cache would be allocated: what the steps allocate is far below its size."""
    generate(runner, 3, PROMPT, 2)
    statistics = runner._device._device.allocator.statistics
    before = statistics["device_bytes_allocated"]
    generate(runner, 3, PROMPT, 30)
    used = runner._device._device.allocator.statistics["device_bytes_allocated"] - before
    assert used < 30 * runner.memory()["kv"]
    window = runner._buffers.kv[0].window
    assert window is not None
    assert np.count_nonzero(window[:, :, 3]) >= 2 * 2 * 2 * 16 * (len(PROMPT) + 29) * 0.99
    assert not window[:, :, (0, 1, 2, 4, 5, 6, 7)].any() or _only_spare_rows(runner, {3})


def _only_spare_rows(runner: IreeRunner, used: set[int]) -> bool:
    """Slots that take no part are written to in their last tile of rows only, which nobody attends to."""
    window = runner._buffers.kv[0].window
    assert window is not None
    keys = window[:, 0].reshape(2, 8, 2, -1, 16 * 16)
    values = window[:, 1].reshape(2, 8, 2, -1, 16 * 16)
    others = [slot for slot in range(8) if slot not in used]
    return not keys[:, others, :, :-1].any() and not values[:, others, :, :-1].any()


def test_inactive_slots_are_not_written(runner: IreeRunner) -> None:
    expected = generate(runner, 7, PROMPT, 20)
    for slot in range(8):
        runner.reset(slot)
    generate(runner, 2, PROMPT[:5], 2)
    saved = runner._buffers.kv[0].window[:, :, 2].copy()  # type: ignore[index]
    assert generate(runner, 7, PROMPT, 20) == expected
    # Slot 2 sat in the bucket of 8 all the while.
    keys, now = saved.reshape(2, 2, 2, -1, 256), runner._buffers.kv[0].window[:, :, 2].reshape(2, 2, 2, -1, 256)  # type: ignore[index]
    np.testing.assert_array_equal(keys[:, 0, :, :-1], now[:, 0, :, :-1])


def test_reset_leaves_nothing_behind(runner: IreeRunner) -> None:
    window = runner._buffers.kv[0].window
    assert window is not None
    generate(runner, 4, PROMPT, 30)
    assert window[:, :, 4].any()
    runner.reset(4)
    assert not window[:, :, 4].any()


def test_a_copy_is_a_slot_of_its_own(runner: IreeRunner) -> None:
    window = runner._buffers.kv[0].window
    assert window is not None
    expected = runner.logits(Chunk(7, PROMPT, 0, 0))
    generate(runner, 3, PROMPT[::-1], 3)
    generate(runner, 0, PROMPT, 5)
    runner.copy_prefix(0, 3, 21)
    runner.reset(0)
    np.testing.assert_array_equal(runner.logits(Chunk(3, PROMPT[21:], 21, 21)), expected[21:])
    runner.copy_prefix(3, 3, 13)
    runner.copy_prefix(3, 5, 13)
    np.testing.assert_array_equal(window[:, :, 3], window[:, :, 5])
    np.testing.assert_array_equal(runner.logits(Chunk(5, PROMPT[13:], 13, 13)), expected[13:])
    runner.reset(5)
    assert not window[:, :, 5].any()


@pytest.mark.parametrize(
    ("copy", "words"), [((8, 0, 0), "source: 8"), ((0, -1, 0), "target: -1"), ((0, 1, 1), "length: 1 rows of a slot")]
)
def test_bad_copies_are_refused(runner: IreeRunner, copy: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        runner.copy_prefix(*copy)


def test_a_poisoned_slot_fails_and_is_clean_after_reset(runner: IreeRunner) -> None:
    window = runner._buffers.kv[0].window
    assert window is not None
    expected = generate(runner, 1, PROMPT, 5)
    window[:, :, 1] = np.float32(np.nan).view(np.uint32)
    assert generate(runner, 0, PROMPT, 3) == expected[:3]
    at = len(PROMPT) + 2
    rows = [DecodeRow(slot, expected[2], at, at, SampleSpec(Sampling(), at + 1)) for slot in (0, 1)]
    assert runner.decode(rows) == [expected[3], None]  # a neighbour is not touched
    assert runner.prefill([Chunk(1, (9,), at, at)], [SampleSpec(Sampling(), at + 1)]) == [None]
    runner._rows.written[1] = CONTEXT
    runner.reset(1)
    assert generate(runner, 1, PROMPT, 5) == expected


def test_greedy_and_seeded_rows_mix_in_one_step(runner: IreeRunner) -> None:
    greedy, seeded = generate(runner, 0, PROMPT, 6), generate(runner, 1, PROMPT, 6, SEEDED)
    assert greedy != seeded
    runner.reset(0)
    runner.reset(1)
    runner.prefill([Chunk(0, PROMPT, 0, 0)], [None])
    runner.prefill([Chunk(1, PROMPT, 0, 0)], [None])
    for at in range(5):
        position = len(PROMPT) + at
        specs = SampleSpec(Sampling(), position + 1), SampleSpec(SEEDED, position + 1)
        rows = [
            DecodeRow(slot, tokens[at], position, position, specs[slot]) for slot, tokens in enumerate((greedy, seeded))
        ]
        assert runner.decode(rows[::-1]) == [seeded[at + 1], greedy[at + 1]]


def test_what_is_changed_of_logits_is_changed_for_its_row_alone(runner: IreeRunner) -> None:
    """Edits, a mask and plain rows in one step; reports are of the logits before any change."""
    logits = runner.logits(Chunk(0, PROMPT, 0, 0))[-1]
    best, second = np.argsort(-logits, kind="stable")[:2].tolist()
    out, one, zero = (np.array([value], np.float32) for value in (-np.inf, 1, 0))
    ban = LogitEdits(np.array([best], np.int32), out, one, one, zero)
    mask = np.zeros(16, np.uint32)
    mask[7] = 1 << 9
    at = len(PROMPT)
    greedy, seeded = Sampling(logprobs=2), structs.replace(SEEDED, logprobs=0)
    specs = [
        SampleSpec(greedy, at),
        SampleSpec(greedy, at, ban),
        SampleSpec(greedy, at, None, mask),
        SampleSpec(seeded, at, ban, mask),
    ]
    expected = [best, second, 7 * 32 + 9, 7 * 32 + 9]
    for slot, spec in enumerate(specs):
        runner.reset(slot)
        assert runner.prefill([Chunk(slot, PROMPT, 0, 0)], [spec]) == [expected[slot]]
        (alone,) = runner.logprobs([0])
        assert alone.tokens[:2] == (best, second)
        runner.reset(slot)
        runner.prefill([Chunk(slot, PROMPT[:-1], 0, 0)], [None])
    rows = [DecodeRow(slot, PROMPT[-1], at - 1, at - 1, spec) for slot, spec in enumerate(specs)]
    order = (2, 0, 3, 1)  # of the bucket of 4, whose rows are sampled one by one
    assert runner.decode([rows[slot] for slot in order]) == [expected[slot] for slot in order]
    assert runner.logprobs([2, 0]) == [alone, alone]
    runner.prefill([Chunk(7, PROMPT[:-1], 0, 0)], [None])
    last = DecodeRow(7, PROMPT[-1], at - 1, at - 1, specs[0])  # all slots at once
    for slot in range(4):
        runner.reset(slot)
        runner.prefill([Chunk(slot, PROMPT[:-1], 0, 0)], [None])
    assert runner.decode([last, *rows[::-1]]) == [best, *expected[::-1]]
    assert runner.logprobs([0, 1, 2, 3, 4])[1] == alone
    runner.reset(1)
    runner.prefill([Chunk(1, PROMPT[:-1], 0, 0)], [None])
    assert runner.decode([rows[1]]) == [second]  # edits without a mask are made in place, but not of what is reported
    assert runner.logprobs([0])[0].tokens[:2] == (best, second)
    whole = np.log(np.exp(logits.astype(np.float64)).sum())
    assert alone.logprob == pytest.approx(logits[expected[3]] - whole, abs=3e-5)


def test_log_probabilities_need_a_drawn_token(runner: IreeRunner) -> None:
    runner.prefill([Chunk(0, PROMPT, 0, 0)], [None])
    with pytest.raises(RuntimeError, match="no token was sampled"):
        runner.logprobs([0])


def test_logits_agree_with_greedy_tokens(runner: IreeRunner) -> None:
    tokens = generate(runner, 0, PROMPT, 8)
    logits = runner.logits(Chunk(1, PROMPT + tuple(tokens), 0, 0))
    assert logits.shape == (len(PROMPT) + 8, 512)
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == tokens


def test_a_rope_position_is_not_a_cache_row(runner: IreeRunner) -> None:
    """Attention sees differences of positions: a prompt moved as a whole, even past the context, scores the same."""
    plain = runner.logits(Chunk(0, PROMPT, 0, 0))
    moved = runner.logits(Chunk(1, PROMPT, 0, CONTEXT + 100))
    np.testing.assert_allclose(moved, plain, atol=2e-4)
    assert not np.array_equal(moved, plain)


def test_the_last_row_of_the_context(runner: IreeRunner) -> None:
    prompt = tuple(3 + i % 500 for i in range(CONTEXT - 1))
    tokens = generate(runner, 6, prompt, 2)
    whole = runner.logits(Chunk(2, (*prompt, tokens[0]), 0, 0))
    assert whole[-2:].argmax(-1).tolist() == tokens


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (Chunk(8, (1,), 0, 0), "slot: 8"),
        (Chunk(-1, (1,), 0, 0), "slot: -1"),
        (Chunk(0, (), 0, 0), "tokens: give at least one"),
        (Chunk(0, (512,), 0, 0), "outside of a vocabulary of 512"),
        (Chunk(0, (-1,), 0, 0), "outside of a vocabulary of 512"),
        (Chunk(0, (1,), 1, 1), "start: 1 leaves a gap after 0 rows"),
        (Chunk(0, (1,) * (CONTEXT + 1), 0, 0), f"start: a slot has {CONTEXT} rows"),
        (Chunk(0, (1,), 0, -1), "position: -1"),
    ],
)
def test_bad_chunks_are_refused(runner: IreeRunner, chunk: Chunk, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        runner.prefill([chunk], [None])
    with pytest.raises(ValueError, match=words):
        runner.logits(chunk)


def test_bad_rows_are_refused(runner: IreeRunner) -> None:
    spec = SampleSpec(Sampling(), 1)
    with pytest.raises(ValueError, match="one row a slot"):
        runner.decode([DecodeRow(0, 1, 0, 0, spec), DecodeRow(0, 1, 0, 0, spec)])
    with pytest.raises(ValueError, match="slot: 9"):
        runner.reset(9)
    assert runner.decode([]) == []


def test_the_fewest_graphs_serve_everything_alike(load: Load, runner: IreeRunner) -> None:
    """Long prompts, sampling and scoring, before the graphs for them are there."""
    few = load()
    try:
        assert few.graphs.ready == {"decode_8", "prefill_96", "head_8", "sample"}
        prompt = tuple(3 + i % 500 for i in range(CONTEXT - 6))
        for slot, sampling in enumerate((Sampling(), SEEDED, Sampling(temperature=1.1, seed=1 << 40))):
            assert generate(few, slot, prompt, 5, sampling) == generate(runner, slot, prompt, 5, sampling)
        np.testing.assert_array_equal(few.logits(Chunk(5, PROMPT, 0, 0)), runner.logits(Chunk(5, PROMPT, 0, 0)))
        few.graphs.fetch([], few.graphs.builder.plan.rare())
        few.logits(Chunk(6, PROMPT[:1], 0, 0))
        few.settle()
        assert "score_96" in few.graphs.ready  # missed, and by now there
    finally:
        few.close()


def test_the_decode_graph_serves_alone(runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several slots in one call, of more and of fewer rows than the graph has, samples and reports."""
    prompts = [PROMPT, PROMPT[:9], PROMPT[:1], PROMPT[:8]]
    chunks = [Chunk(slot, prompt, 0, 0) for slot, prompt in enumerate(prompts)]
    specs = [SampleSpec(SEEDED, len(PROMPT)), None, SampleSpec(Sampling(), 1), SampleSpec(SEEDED, 8)]
    targets = [*PROMPT[1:9], 7]

    def serve() -> list[Any]:
        for slot in range(len(prompts)):
            runner.reset(slot)
        tokens = runner.prefill(chunks, specs)
        logprobs = runner.logprobs([0, 2])
        row = DecodeRow(1, PROMPT[9], 9, 9, SampleSpec(Sampling(), 10))
        followed = [runner.decode([row]), runner.prefill([Chunk(0, PROMPT, len(PROMPT), len(PROMPT))], [None])]
        reported = runner.prefill_reported(Chunk(3, PROMPT[:9], 0, 0), SampleSpec(SEEDED, 9), targets)
        return [tokens, logprobs, *followed, reported]

    expected = serve()
    called: set[str] = set()
    call = runner.graphs.call

    def noted(name: str, *arguments: Any) -> Any:
        called.add(name)
        return call(name, *arguments)

    monkeypatch.setattr(runner.graphs, "call", noted)
    monkeypatch.setattr(runner.graphs, "_ready", {"decode_8": runner.graphs["decode_8"]})
    assert serve() == expected
    assert called == {"decode_8"}


@pytest.mark.parametrize("step", ["Recipe.of", "free_bytes", "open_archive", "host_kv", "GraphRegistry.open"])
def test_a_load_that_fails_leaves_nothing_open(load: Load, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    closed: list[str] = []

    def closing(name: str, close: Any) -> Any:
        def noted(self: Any) -> None:
            closed.append(name)
            close(self)

        return noted

    monkeypatch.setattr(Device, "close", closing("device", Device.close))
    monkeypatch.setattr(Archive, "close", closing("archive", Archive.close))

    def fail(*_: Any, **__: Any) -> None:
        raise LoadRefused(step)

    module = "execution.slot_buffers" if step == "host_kv" else "runner"
    monkeypatch.setattr(f"workers.iree.{module}.{step}", fail)
    with pytest.raises(LoadRefused, match=step):
        load()
    opened = {"host_kv": ["archive", "device"], "GraphRegistry.open": ["device", "archive"]}  # a runner closes it last
    assert closed == opened.get(step, ["device"])


def test_without_a_bound_the_slots_share_what_memory_is_free(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, row = 558_336, 2 * 2 * 2 * 16 * 4
    monkeypatch.setattr("workers.iree.runner.free_bytes", lambda: (weights + 300 * row) * 10 // 9 + 9)
    runner = load()
    assert (runner.capabilities.row_bytes, runner.capabilities.kv_rows) == (row, 300)
    runner.close()


def test_a_broken_checkpoint_is_named(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    tensors = dict(open_weights(path))
    del tensors["model.norm.weight"]
    from tests.checkpoints import write_safetensors

    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"model.norm.weight: the tensor is missing"):
        load(path)


def test_hidden_states_are_exact_with_and_without_their_graph(load: Load, checkpoint: Path) -> None:
    few = load()
    try:
        expected = run_hidden_gate(few, checkpoint)
        assert "hidden_96" not in few.graphs.ready
        for slot in range(4):
            few.reset(slot)
        fetch_all(few, "hidden")
        np.testing.assert_array_equal(run_hidden_gate(few, checkpoint), expected)
        assert "hidden_96" in few.graphs.ready
    finally:
        few.close()
