"""A draft model by its costs: it drafts where that gains, and loses no more than its budget where it does not."""

from collections.abc import Mapping, Sequence

import pytest

from tests.workers.engine.harness.batched import drafting_with
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_budget import DEBT_STEPS, LOSS
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.speculator import Speculator
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

TOKENS = 3000


class Time:
    """A clock that calls advance."""

    def __init__(self) -> None:
        self.now = 0.0


class Timed(ScriptedRunner):
    """Takes a time for each step and for each prompt token."""

    def __init__(self, time: Time, step_s: float, alphabet: Sequence[int] = tuple(range(97, 123))) -> None:
        super().__init__(
            slots=8, context=4096, prefill_chunks=(16, 64), alphabet=alphabet, decode_rows=8, vocab_size=257
        )
        self._time = time
        self._step_s = step_s

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._time.now += self._step_s * sum(len(chunk.tokens) for chunk in chunks) / 16
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._time.now += self._step_s * (0.95 + 0.05 * len(rows))
        return super().decode(rows)


class NoDrafter(Drafter):
    """Drafts nothing."""

    def draft(self, most: int) -> Sequence[int]:
        return ()


def seconds(streams: int, draft_s: float, alphabet: Sequence[int] | None) -> float:
    """The time that some long answers take, with a draft model if it has an alphabet."""
    time = Time()
    device, speculator = Timed(time, 1.0), None
    if alphabet is not None:
        draft = DraftModel(Timed(time, draft_s, alphabet))
        drafting = BatchDrafting(draft, draft_s, clock=lambda: time.now)
        speculator = Speculator(device.capabilities, lambda _: [NoDrafter()], batched=drafting, clock=lambda: time.now)
    engine = BatchEngine(device, max_queue=9, step_tokens=64, speculator=speculator, clock=lambda: time.now)
    for stream in range(streams):
        engine.submit(EngineRequest(stream, (97 + stream,) * 200, max_tokens=TOKENS))
    while not engine.idle:
        assert not engine.step().failures
    assert not device.violations
    return time.now


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("draft_s", [0.02, 0.1, 0.5])
def test_a_model_that_is_never_right_loses_no_more_than_its_budget(streams: int, draft_s: float) -> None:
    plain = seconds(streams, draft_s, None)
    drafted = seconds(streams, draft_s, (32, 33))
    assert drafted <= plain * (1 + LOSS) + DEBT_STEPS * 1.2
    assert drafted <= 1.03 * plain


@pytest.mark.parametrize(("streams", "ratio"), [(1, 2.5), (4, 1.4), (8, 0.99)])
def test_a_model_that_is_always_right_pays_where_there_are_rows(streams: int, ratio: float) -> None:
    plain = seconds(streams, 0.1, None)
    assert plain / seconds(streams, 0.1, tuple(range(97, 123))) >= ratio


def test_a_model_that_is_as_slow_as_the_target_drafts_nothing_that_loses() -> None:
    assert seconds(2, 1.0, tuple(range(97, 123))) <= 1.03 * seconds(2, 1.0, None)


class Uneven(Timed):
    """Every fourth step takes half as long again."""

    steps = 0

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.steps += 1
        self._time.now += 0.0 if self.steps % 4 else 0.5 * self._step_s
        return super().decode(rows)


class Counting(NoDrafter):
    """Counts its calls."""

    calls = 0

    def draft(self, most: int) -> Sequence[int]:
        self.calls += 1
        return super().draft(most)


def test_look_ups_do_not_pay_for_steps_that_verify_drafts_of_a_model_alone() -> None:
    time, drafter = Time(), Counting()
    device = Uneven(time, 1.0)
    drafting = drafting_with(Timed(time, 0.0))
    speculator = Speculator(device.capabilities, lambda _: [drafter], batched=drafting, clock=lambda: time.now)
    engine = BatchEngine(device, max_queue=9, step_tokens=64, speculator=speculator, clock=lambda: time.now)
    engine.submit(EngineRequest(1, (97,) * 20, max_tokens=1000))
    while not engine.idle:
        assert not engine.step().failures
    assert engine.gauges().accepted_tokens > 500
    assert drafter.calls >= engine.gauges().decode_steps - 1


class Slow(Counting):
    """A call takes as long as a step."""

    def __init__(self, time: Time) -> None:
        self._time = time

    def draft(self, most: int) -> Sequence[int]:
        self._time.now += 1.0
        return super().draft(most)


def test_steps_are_measured_for_a_model_while_look_ups_rest() -> None:
    """A second answer begins meanwhile: the step of two is not known yet."""
    time = Time()
    device, drafter = Timed(time, 1.0), Slow(time)
    drafting = BatchDrafting(DraftModel(Timed(time, 0.01)), 0.01, clock=lambda: time.now)
    speculator = Speculator(device.capabilities, lambda _: [drafter], batched=drafting, clock=lambda: time.now)
    engine = BatchEngine(device, max_queue=9, step_tokens=64, speculator=speculator, clock=lambda: time.now)
    for stream in (1, 2):
        engine.submit(EngineRequest(stream, (96 + stream,) * 20, max_tokens=200))
        for _ in range(3):
            engine.step()
    before = engine.gauges().accepted_tokens
    for _ in range(20):
        engine.step()
    assert drafter.calls == 1
    assert engine.gauges().accepted_tokens - before > 20


class Steep(Timed):
    """Each further row of a step takes 0.4 of the first one's time, as on the CPU backend of MLX."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._time.now += 0.35 * self._step_s * (len(rows) - 1)
        return super().decode(rows)


class Quotes(NoDrafter):
    """Knows the answers to requests up to a stream."""

    def __init__(self, sequence: EngineSequence, answers: Mapping[int, Sequence[int]], last: int) -> None:
        self._sequence = sequence
        self._answer = answers[sequence.request.stream] if sequence.request.stream <= last else ()

    def draft(self, most: int) -> Sequence[int]:
        at = self._sequence.completion_tokens
        return tuple(self._answer[at : at + most])


def test_look_ups_leave_the_budget_of_a_model_to_answers_that_they_cannot_draft() -> None:
    """Prompts of which the answer is looked up are not computed by the draft model, so that it is tried at the first
    other one."""
    time, answers = Time(), dict[int, list[int]]()

    def generate(device: Steep, speculator: Speculator | None) -> list[float]:
        engine = BatchEngine(device, max_queue=9, step_tokens=512, speculator=speculator, clock=lambda: time.now)
        seconds = []
        for stream in range(10):
            engine.submit(EngineRequest(stream, (97 + stream,) * 500, max_tokens=200))
            began = time.now
            while not engine.idle:
                result = engine.step()
                assert not result.failures
                if speculator is None:
                    answers.setdefault(stream, []).extend(each.token for each in result.tokens)
            seconds.append(time.now - began)
        return seconds

    plain = generate(Steep(time, 1.0), None)
    device, draft = Steep(time, 1.0), DraftModel(Timed(time, 0.1))
    drafting = BatchDrafting(draft, 0.1, clock=lambda: time.now)
    speculator = Speculator(
        device.capabilities, lambda each: [Quotes(each, answers, 7)], batched=drafting, clock=lambda: time.now
    )
    drafted = generate(device, speculator)
    assert sum(plain[:8]) / sum(drafted[:8]) > 1.5
    assert sum(plain[8:]) / sum(drafted[8:]) > 1.2
