"""Scripted runner: tokens follow from the history alone, and every contract violation is an error."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocol.request import Sampling
from tests.sampled import sampled
from tests.workers.rows_gate import run_rows_gate
from workers.engine.runner import Chunk, DecodeRow
from workers.sampling.sample_spec import LogitEdits, SampleSpec
from workers.scripted.contract import ContractError
from workers.scripted.runner import ALPHABET, ROW_BYTES, STATE_BYTES, ScriptedRunner

GREEDY = Sampling()
SEEDED = Sampling(temperature=1.0, seed=9)


def runner(**options: Any) -> ScriptedRunner:
    return ScriptedRunner(slots=4, context=32, prefill_chunks=(4, 8), **options)


def fill(one: ScriptedRunner, slot: int, tokens: tuple[int, ...], sampling: Sampling = GREEDY) -> int:
    (token,) = one.prefill([Chunk(slot, tokens, 0, 0)], [SampleSpec(sampling, len(tokens))])
    assert token is not None
    return token


def test_the_next_token_depends_on_the_history_and_not_on_slot_or_chunks() -> None:
    one = runner()
    first = fill(one, 0, (1, 2, 3, 4, 5))
    one.prefill([Chunk(2, (1, 2), 0, 0)], [None])
    assert one.prefill([Chunk(2, (3, 4, 5), 2, 2)], [SampleSpec(GREEDY, 5)]) == [first]
    row = [DecodeRow(slot, first, 5, 5, SampleSpec(GREEDY, 6)) for slot in (2, 0)]
    assert len(set(one.decode(row))) == 1
    assert first in ALPHABET
    others = {fill(runner(), 0, (1, 2, 3, 4, token)) for token in range(6, 40)}
    assert len(others) > 10


def test_seed_and_position_make_the_noise_and_greedy_has_none() -> None:
    assert fill(runner(), 0, (1, 2), Sampling(seed=1)) == fill(runner(), 0, (1, 2), Sampling(seed=2))
    tokens = [fill(runner(), 0, (1, 2), Sampling(temperature=1.0, seed=seed)) for seed in range(40)]
    assert len(set(tokens)) > 10
    assert fill(runner(), 1, (1, 2), SEEDED) == fill(runner(), 3, (1, 2), SEEDED)


def test_the_logits_peak_at_the_greedy_token() -> None:
    logits = runner().logits(Chunk(0, (5, 6, 7), 0, 0))
    assert logits.shape == (3, 257)
    assert logits.dtype == np.float32
    for length in (1, 2, 3):
        assert logits[length - 1].argmax() == fill(runner(), 0, (5, 6, 7)[:length])


@pytest.mark.parametrize(
    "breach",
    [
        lambda one: one.prefill([Chunk(4, (1,), 0, 0)], [None]),
        lambda one: one.prefill([Chunk(1, (1,), 1, 1)], [None]),
        lambda one: one.prefill([Chunk(0, (1,), 0, 0)], [None]),
        lambda one: one.prefill([Chunk(0, (1,), 4, 4)], [None]),
        lambda one: one.prefill([Chunk(0, (1,), 3, 4)], [None]),
        lambda one: one.prefill([Chunk(1, (), 0, 0)], [None]),
        lambda one: one.prefill([Chunk(1, (1,) * 9, 0, 0)], [None]),
        lambda one: one.prefill([Chunk(1, (257,), 0, 0)], [None]),
        lambda one: one.prefill([Chunk(1, (-1,), 0, 0)], [None]),
        lambda one: one.prefill([Chunk(1, (1, 1), 0, 0)], [SampleSpec(GREEDY, 3)]),
        lambda one: one.decode([]),
        lambda one: one.decode([DecodeRow(0, 1, 3, 3, SampleSpec(GREEDY, 4))] * 2),
        lambda one: one.decode([DecodeRow(0, 1, 4, 4, SampleSpec(GREEDY, 5))]),
        lambda one: one.decode([DecodeRow(0, 1, 3, 3, SampleSpec(GREEDY, 3))]),
        lambda one: one.decode([DecodeRow(0, 1, 3, 4, SampleSpec(GREEDY, 5))]),
        lambda one: one.decode([DecodeRow(1, 1, 0, 0, SampleSpec(GREEDY, 1))]),
        lambda one: one.logits(Chunk(0, (1,), 0, 0)),
        lambda one: one.reset(4),
    ],
)
def test_a_contract_violation_raises_and_is_recorded(breach: Callable[[ScriptedRunner], object]) -> None:
    one = runner()
    fill(one, 0, (1, 2, 3))
    with pytest.raises(ContractError) as found:
        breach(one)
    assert one.violations == [str(found.value)]
    assert one.decode([DecodeRow(0, 1, 3, 3, SampleSpec(GREEDY, 4))]), "a refused call has no effect"


def test_the_context_is_the_last_row() -> None:
    one = runner()
    for start in range(0, 32, 8):
        one.prefill([Chunk(0, (1,) * 8, start, start)], [None])
    with pytest.raises(ContractError, match="rows 32 to 33 of a context of 32"):
        one.decode([DecodeRow(0, 1, 32, 32, SampleSpec(GREEDY, 33))])


def test_a_non_finite_sample_breaks_its_slot_until_it_is_reset() -> None:
    one = runner()
    for slot in range(3):
        fill(one, slot, (1, 2))
    value = np.ones(1, np.float32)
    edits = [LogitEdits(np.array([5], np.int32), bias * value, value, value, value) for bias in (1.0, math.nan, 1.0)]
    rows = [DecodeRow(slot, 6, 2, 2, SampleSpec(GREEDY, 3, each)) for slot, each in enumerate(edits)]
    first, bad, third = one.decode(rows)
    assert (bad, first) == (None, third)
    assert first in ALPHABET
    assert len(one.logprobs([0, 2])) == 2
    with pytest.raises(ContractError, match="log-probabilities"):
        one.logprobs([1])
    with pytest.raises(ContractError, match="slot 1 is used after a failure"):
        one.decode([DecodeRow(1, 6, 3, 3, SampleSpec(GREEDY, 4))])
    with pytest.raises(ContractError, match="a copy from slot 1"):
        one.copy_prefix(1, 2, 1)
    one.reset(1)
    fill(one, 1, (1, 2))


@pytest.mark.parametrize(
    ("chunks", "specs", "options"),
    [
        ([], [], {}),
        ([Chunk(0, (1,), 0, 0)], [], {}),
        ([Chunk(0, (1,), 0, 0), Chunk(0, (1,), 1, 1)], [None, None], {}),
        ([Chunk(0, (1,), 0, 0), Chunk(1, (1,), 0, 0)], [None, None], {"exact_rows": False}),
        ([Chunk(0, (1,) * 4, 0, 0), Chunk(1, (1,) * 5, 0, 0)], [None, None], {}),
        ([Chunk(slot, (1,), 0, 0) for slot in range(3)], [None] * 3, {"block_rows": 4}),
    ],
    ids=["none", "no specs", "one slot", "rows that are not exact", "too many", "too many blocks"],
)
def test_invalid_prefill_calls(chunks: list[Chunk], specs: list[None], options: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        runner(**options).prefill(chunks, specs)


def test_prefill_samples_for_chunks_with_a_spec() -> None:
    first, second = fill(runner(), 0, (1, 2, 3)), fill(runner(), 0, (5, 6))
    one = runner(block_rows=4)
    chunks = [Chunk(0, (1, 2, 3), 0, 0), Chunk(1, (5, 6), 0, 0)]
    assert one.prefill(chunks, [None, SampleSpec(GREEDY, 2)]) == [None, second]
    assert len(one.logprobs([0])) == 1
    one.reset(0)
    one.reset(1)
    assert one.prefill(chunks, [SampleSpec(GREEDY, 3), SampleSpec(GREEDY, 2)]) == [first, second]


@pytest.mark.parametrize("start", [0.0, 100.0], ids=["just booted", "later"])
def test_decode_steps_are_paced_and_lost_time_is_not_made_up_for(start: float) -> None:
    now, slept = [start], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    one = runner(tokens_per_second=10.0, clock=lambda: now[0], sleep=sleep)
    token = fill(one, 0, (1,))
    for at in range(1, 4):
        (token,) = sampled(one.decode([DecodeRow(0, token, at, at, SampleSpec(GREEDY, at + 1))]))
    assert slept == [0.1, 0.1]
    now[0] += 5.0
    for at in range(4, 6):
        (token,) = sampled(one.decode([DecodeRow(0, token, at, at, SampleSpec(GREEDY, at + 1))]))
    assert slept == [0.1, 0.1, 0.1]


def test_prompts_take_time_where_their_rate_is_limited() -> None:
    slept: list[float] = []
    one = runner(prefill_tokens_per_second=10.0, sleep=slept.append)
    fill(one, 0, (1, 2, 3))
    one.prefill([Chunk(1, (1, 2), 0, 0), Chunk(2, (4,), 0, 0)], [None, None])
    fill(runner(sleep=slept.append), 0, (1, 2, 3))
    assert slept == [pytest.approx(0.3), pytest.approx(0.3)]


def test_rows_that_are_read_and_written_are_those_of_the_slot() -> None:
    one, other = (ScriptedRunner(slots=2, context=64, prefill_chunks=(40,)) for _ in range(2))
    run_rows_gate(one, other, 40)


def test_a_broken_slot_is_not_read() -> None:
    one = runner()
    value = np.ones(1, np.float32)
    edits = LogitEdits(np.array([5], np.int32), math.nan * value, value, value, value)
    assert one.prefill([Chunk(0, (1, 2), 0, 0)], [SampleSpec(GREEDY, 2, edits)]) == [None]
    with pytest.raises(ContractError, match="slot 0 is read after a failure"):
        one.read_rows(0, 0, 2)
    with pytest.raises(ContractError, match="slot 0 is used after a failure"):
        one.write_rows(0, 2, bytes(8))


def stateful(**options: Any) -> ScriptedRunner:
    return ScriptedRunner(slots=3, state_bytes=STATE_BYTES, rollback_rows=3, decode_rows=6, **options)


@pytest.mark.parametrize("row_bytes", [0, ROW_BYTES])
def test_tokens_depend_on_the_recurrent_state(row_bytes: int) -> None:
    """A slot with the rows of one prompt and the state of another has other tokens."""

    def after(prompt: tuple[int, ...], state: bytes | None) -> int | None:
        runner = stateful(row_bytes=row_bytes, alphabet=range(257))
        runner.prefill([Chunk(0, prompt, 0, 0)], [None])
        if state is not None:
            runner.write_state(0, state)
        (token,) = runner.prefill([Chunk(0, (9,), 3, 3)], [SampleSpec(Sampling(), 4)])
        return token

    one = stateful(row_bytes=row_bytes)
    one.prefill([Chunk(0, (1, 2, 3), 0, 0)], [None])
    state = one.read_state(0)
    assert len(state) == STATE_BYTES
    assert after((1, 2, 3), state) == after((1, 2, 3), None)
    assert after((3, 2, 1), state) != after((3, 2, 1), None)
    assert (after((3, 2, 1), state) == after((1, 2, 3), None)) == (row_bytes == 0)


# No scheduler takes back the first row of a step by another step: its token is right in any case.
@pytest.mark.parametrize(("copied", "back"), [(False, 0), (False, 1), (False, 2), (True, 0), (True, 1), (True, 3)])
def test_rows_of_the_last_step_are_taken_back_from_the_state(copied: bool, back: int) -> None:
    """By a copy, or by a step that begins before them."""

    def rows(start: int, *tokens: int) -> list[DecodeRow]:
        return [DecodeRow(0, token, at, at, SampleSpec(Sampling(), at + 1)) for at, token in enumerate(tokens, start)]

    runner, plain = stateful(alphabet=range(257)), stateful(alphabet=range(257))
    for each in (runner, plain):
        each.prefill([Chunk(0, (1, 2), 0, 0)], [None])
    runner.decode(rows(2, 3, 4, 5))
    if kept := (3, 4, 5)[: 3 - back]:
        plain.decode(rows(2, *kept))
    if copied:
        runner.copy_prefix(0, 0, 5 - back)
        assert runner.read_state(0) == plain.read_state(0)
    assert runner.decode(rows(5 - back, 7)) == plain.decode(rows(5 - back, 7))
    assert runner.violations == []


def test_a_slot_without_a_state_is_not_computed_further() -> None:
    runner = stateful()
    runner.prefill([Chunk(0, (1, 2, 3), 0, 0)], [None])
    runner.copy_prefix(0, 1, 2)
    with pytest.raises(ContractError, match="slot: 1 has rows without a recurrent state"):
        runner.prefill([Chunk(1, (3,), 2, 2)], [None])
    with pytest.raises(ContractError, match="slot: 1 has rows without a recurrent state"):
        runner.read_state(1)
    with pytest.raises(ContractError, match="state: 3 bytes"):
        runner.write_state(1, b"abc")
    runner.copy_prefix(0, 2, 3)
    assert runner.read_state(2) == runner.read_state(0)
