"""A draft model by its costs: it drafts where that gains, and loses no more than its budget where it does not."""

from collections.abc import Sequence

import pytest

from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
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
