"""A head for multi-token prediction by its costs: it gains where it is right, and loses next to nothing elsewhere."""

from collections.abc import Sequence

import pytest

from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.mtp.head_rows import HeadRows
from workers.engine.speculation.mtp.head_upkeep import HeadUpkeep
from workers.engine.speculation.mtp.mtp_drafter import RELATIVE_COST, MtpDrafter
from workers.engine.speculation.speculator import Speculator
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

RIGHT, WRONG = 97, 98
FOLLOW = 0.1
"""Cost of following a step, relative to it."""


class Head:
    """Implements `DraftHead`. Drafts one token only, which is right or wrong."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.now = self.followed_s = self.prompts_s = 0.0
        """The clock, in steps, which it and the device move."""
        self.drafts = 0
        self.follows = 0
        """Steps that it has followed."""
        self._rows: HeadRows[str] = HeadRows(8)

    def follow(self, slots: int | None) -> None:
        self._rows.follow(slots)

    def ready(self, slot: int, row: int) -> bool:
        return self._rows.follows(slot, prompt=False)

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.now += RELATIVE_COST
        self.drafts += 1
        return [self.token for _ in rows]

    def computed(self, slots: Sequence[int], *, prompt: bool) -> None:
        followed = [slot for slot in slots if self._rows.follows(slot, prompt=prompt)]
        if followed and not prompt:
            self.now += FOLLOW
            self.followed_s += FOLLOW
            self.follows += 1


class Device(ScriptedRunner):
    """A step takes a second, and 5 % longer for each further row."""

    def __init__(self, head: Head) -> None:
        super().__init__(
            slots=8, context=4096, prefill_chunks=(16, 64), alphabet=(RIGHT,), decode_rows=8, vocab_size=257
        )
        self._head = head

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._head.computed([chunk.slot for chunk in chunks], prompt=True)
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._head.now += 0.95 + 0.05 * len(rows)
        self._head.computed(sorted({row.slot for row in rows}), prompt=False)
        return super().decode(rows)


class NoDrafter(Drafter):
    """Drafts nothing."""

    def draft(self, most: int) -> Sequence[int]:
        return ()


def answered(head: Head, streams: int, answers: int) -> float:
    """Return the seconds of answers of 100 tokens, so many at once."""
    device = Device(head)
    drafting = BatchDrafting(MtpDrafter(head), RELATIVE_COST, clock=lambda: head.now, upkeep=HeadUpkeep(head))
    speculator = Speculator(device.capabilities, lambda _: [NoDrafter()], batched=drafting, clock=lambda: head.now)
    engine = BatchEngine(device, max_queue=99, step_tokens=64, speculator=speculator, clock=lambda: head.now)
    for round_ in range(answers):
        for stream in range(streams):
            engine.submit(EngineRequest(round_ * streams + stream, (3,) * 10, max_tokens=101))
        while not engine.idle:
            assert not engine.step().failures
    assert not device.violations
    return head.now


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_a_head_that_is_wrong_loses_next_to_nothing(streams: int) -> None:
    head, answers = Head(WRONG), 40
    plain = answers * 100 * (0.95 + 0.05 * streams)
    assert answered(head, streams, answers) <= 1.015 * plain
    assert 0 < head.follows < 0.1 * answers * 100
    assert (head.drafts > 0) == (streams < 8), "in a full batch there are no rows for drafts"


@pytest.mark.parametrize(("streams", "least"), [(1, 1.4), (4, 1.2)])
def test_a_head_that_is_right_gains(streams: int, least: float) -> None:
    head, answers = Head(RIGHT), 10
    plain = answers * 100 * (0.95 + 0.05 * streams)
    assert plain / answered(head, streams, answers) >= least


class Becoming(Head):
    """Is right after five answers."""

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.token = RIGHT if self.now > 500 else WRONG
        return super().draft(rows)


def test_a_head_that_becomes_right_is_found_by_a_trial() -> None:
    assert 60 * 100 / answered(Becoming(WRONG), 1, 60) > 1.25
