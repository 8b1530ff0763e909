"""The exchange of cache rows at its edges: what an engine reads, what it takes, and what it refuses."""

from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from protocol.bounds import MAX_ROWS_BYTES
from protocol.commands import ReadRows, WriteRows
from protocol.rows_digest import rows_digest
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.transfer.row_exchange import STATES_READ, RowsRead, RowsTaken
from workers.engine.transfer.row_frames import refusal, rows_frame
from workers.scripted.runner import ROW_BYTES, ROWS_FORMAT, STATE_BYTES, ScriptedRunner

PROMPT = tuple(range(40))
CONTEXT = 64


def engine(
    *,
    slots: int = 4,
    kv_tokens: int | None = None,
    prefixes: PrefixPolicy | None = None,
    make: type[ScriptedRunner] = ScriptedRunner,
    **runner: Any,
) -> BatchEngine:
    scripted = make(slots=slots, context=CONTEXT, **runner)
    return BatchEngine(scripted, max_queue=8, step_tokens=64, kv_tokens=kv_tokens, prefixes=prefixes)


class BrokenOnce(ScriptedRunner):
    """Fails to read, and to write what does not begin a slot, the first time."""

    worked = False

    def read_rows(self, slot: int, start: int, end: int) -> bytes:
        self._fail_once()
        return super().read_rows(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        super().write_rows(slot, start, rows)
        if start:
            self._fail_once()

    def _fail_once(self) -> None:
        if not self.worked:
            self.worked = True
            raise OSError("the device has gone")


def running(stream: int = 1, prompt: tuple[int, ...] = PROMPT, **options: Any) -> BatchEngine:
    """An engine with a sequence that has generated three tokens, of which the last one has no row yet."""
    made = engine(**options)
    made.submit(EngineRequest(stream, prompt))
    for _ in range(2):  # the first one has two tokens
        made.step()
    return made


def part(source: BatchEngine, start: int, most: int, *, transfer: int = 9, tenant: str = "") -> WriteRows:
    """The rows of the sequence, as the gateway passes them on."""
    read = source.read_rows(ReadRows(5, transfer, 1, start, most))
    frame = rows_frame(read, source.rows_format)
    return WriteRows(6, transfer, tenant, start, read.tokens, bytes(read.rows), getattr(frame, "digest", b""))


def tokens(of: BatchEngine, steps: int) -> list[int]:
    return [token.token for _ in range(steps) for token in of.step().tokens]


def free(target: BatchEngine) -> int:
    """The number of sequences with their whole context that the engine runs at once."""
    for stream in range(100, 100 + target.capabilities.slots):
        target.submit(EngineRequest(stream, tuple(range(200, 230)), max_tokens=8, tenant=str(stream)))
    target.step()
    return target.gauges().slots_active


@pytest.mark.parametrize(
    ("start", "most", "rows"),
    [(0, 1, 1), (0, 41, 41), (0, 42, 42), (0, 43, 42), (41, 1, 1), (41, 5, 1), (42, 1, 0), (10**6, 1, 0)],
)
def test_it_reads_up_to_the_last_row(start: int, most: int, rows: int) -> None:
    source = running()
    read = source.read_rows(ReadRows(5, 9, 1, start, most))
    assert (read.held, len(read.tokens), len(read.rows)) == (42, rows, rows * ROW_BYTES)
    assert read.tokens[: 40 - start] == PROMPT[start : start + rows]


def test_it_reads_no_more_bytes_than_a_frame_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.transfer.row_exchange.MAX_ROWS_BYTES", 3 * ROW_BYTES + 1)
    assert len(running().read_rows(ReadRows(5, 9, 1, 0, 40)).tokens) == 3
    assert MAX_ROWS_BYTES >= ROW_BYTES


def test_an_unknown_an_ended_and_a_waiting_sequence_have_no_rows() -> None:
    source = running(slots=1)
    source.submit(EngineRequest(2, PROMPT))
    for stream in (2, 3):
        assert source.read_rows(ReadRows(5, 9, stream, 0, 1)) == RowsRead(ReadRows(5, 9, stream, 0, 1))
    source.cancel(1)
    assert source.read_rows(ReadRows(5, 9, 1, 0, 1)).held == 0


def test_rows_that_cannot_be_read_cost_the_sequence_nothing() -> None:
    source = running(make=BrokenOnce)
    with capture_logs() as logs:
        assert source.read_rows(ReadRows(5, 9, 1, 0, 1)) == RowsRead(ReadRows(5, 9, 1, 0, 1))
    assert [each["event"] for each in logs] == ["rows_not_read"]
    assert source.step().tokens


@pytest.mark.parametrize("size", [1, 16, 41, 42])
@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_sequence_continues_with_the_rows_of_its_tenant(size: int, tenant: str) -> None:
    source, target = running(), engine()
    for start in range(0, 42, size):
        given = part(source, start, size)
        assert refusal(given, target.rows_format) is None
        assert target.write_rows(given) == RowsTaken(6, min(start + size, 42))
    gauges = target.gauges()
    assert (gauges.slots_active, gauges.kv_tokens, gauges.retained_tokens) == (0, 0, 42)
    expected = tokens(source, 3)
    resume = source.read_rows(ReadRows(5, 9, 1, 0, 43)).tokens[40:]  # with the last token, which had no row before
    target.submit(EngineRequest(1, PROMPT, resume=resume, tenant=tenant))
    assert tokens(target, 3)[:3] == expected
    assert target.gauges().prefill_tokens == (43 if tenant else 1)


def state(source: BatchEngine, start: int, most: int, *, tenant: str = "") -> WriteRows:
    """A part of the recurrent state of the sequence, as the gateway passes it on."""
    read = source.read_rows(ReadRows(5, 9, 1, start, most, state=True))
    frame = rows_frame(read, source.rows_format)
    return WriteRows(6, 9, tenant, start, (), bytes(read.rows), getattr(frame, "digest", b""), read.held)


STATEFUL: Any = {"state_bytes": STATE_BYTES}


@pytest.mark.parametrize("size", [5, STATE_BYTES - 1, STATE_BYTES, 99])
@pytest.mark.parametrize("first", ["rows", "state"])
def test_a_sequence_continues_with_its_recurrent_state(size: int, first: str) -> None:
    """The state is that after the rows at its first part, whenever its other parts and the last rows are read."""
    source, target = running(**STATEFUL), engine(**STATEFUL)
    assert target.write_rows(part(source, 0, 40)).rows == 40
    parts = [state(source, 0, size)]
    expected = tokens(source, 1)
    parts += [state(source, start, size) for start in range(size, STATE_BYTES, size)]
    assert source.read_rows(ReadRows(5, 9, 1, size, size, state=True)).rows == b"", "it is not kept"
    given = [part(source, 40, 2), *parts] if first == "rows" else [*parts, part(source, 40, 2)]
    for each in given:
        assert refusal(each, target.rows_format) is None
        assert target.write_rows(each).rows == 42
    resume = source.read_rows(ReadRows(5, 9, 1, 0, 43)).tokens[40:]
    expected += tokens(source, 2)
    target.submit(EngineRequest(1, PROMPT, resume=resume))
    assert tokens(target, 3)[:3] == expected
    assert target.gauges().prefill_tokens == 1


def test_rows_without_their_state_are_used_by_no_sequence() -> None:
    source, target = running(**STATEFUL), engine(**STATEFUL)
    assert target.write_rows(part(source, 0, 42)).rows == 42
    assert target.write_rows(state(source, 0, 5)).rows == 42
    target.submit(EngineRequest(1, PROMPT))
    target.step()
    assert target.gauges().prefill_tokens == 40
    assert free(target) == 4


@pytest.mark.parametrize(("options", "retained"), [(STATEFUL, 0), ({}, 42)], ids=["state", "no state"])
def test_a_part_without_rows_ends_a_transfer(options: dict[str, Any], retained: int) -> None:
    source, target = running(**options), engine(**options)
    assert target.write_rows(part(source, 0, 42)).rows == 42
    end = WriteRows(7, 9, "", 0, (), b"", rows_digest(ROWS_FORMAT, 9, 0, (), b""))
    assert refusal(end, ROWS_FORMAT) is None
    assert target.write_rows(end).rows == 0
    assert target.gauges().retained_tokens == retained, "rows that need no state stay a prefix"
    assert free(target) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"start": 6}, "byte 6 does not follow on the 5"),
        ({"start": 4}, "byte 4 does not follow on the 5"),
        ({"state": 41}, "does not follow"),
        ({"rows": bytes(STATE_BYTES - 4)}, "a recurrent state has 16"),
        ({"rows": b""}, "a recurrent state has 16"),
        ({"tokens": (1,)}, "a recurrent state has 16"),
        ({"tenant": "other"}, "of rows that are not held"),
        ({"transfer": 8}, "of rows that are not held"),
    ],
    ids=["a gap", "before", "of other rows", "too long", "empty", "with tokens", "another tenant", "no transfer"],
)
def test_parts_of_a_state_follow_one_another(change: dict[str, Any], reason: str) -> None:
    source, target = running(**STATEFUL), engine(**STATEFUL)
    assert target.write_rows(part(source, 0, 42)).rows == 42
    assert target.write_rows(state(source, 0, 5)).rows == 42
    given = structs.replace(state(source, 5, 5), **change)
    taken = target.write_rows(given)
    assert (taken.rows, reason in taken.text) == (0, True), taken.text
    assert target.gauges().retained_tokens == (42 if given.transfer == 8 else 0), "rows without a state are of no use"
    assert free(target) == 4


def test_a_state_behind_other_rows_is_refused_with_them() -> None:
    source, target = running(**STATEFUL), engine(**STATEFUL)
    given = state(source, 0, STATE_BYTES)
    source.step()
    assert target.write_rows(part(source, 0, 43)).rows == 43
    with capture_logs() as logs:
        assert "could not be written" in target.write_rows(given).text
    assert [each["event"] for each in logs] == ["rows_not_written"]
    assert target.gauges().retained_tokens == 0


def test_a_worker_keeps_few_states_for_transfers() -> None:
    source = running(**STATEFUL)
    for transfer in range(STATES_READ + 1):
        assert source.read_rows(ReadRows(5, transfer, 1, 0, 5, state=True)).rows
    held = [source.read_rows(ReadRows(5, each, 1, 5, 5, state=True)).held for each in range(STATES_READ + 1)]
    assert held == [0, *[42] * STATES_READ]
    assert source.read_rows(ReadRows(5, 9, 2, 0, 5, state=True)).held == 0
    assert running().read_rows(ReadRows(5, 9, 1, 0, 5, state=True)).held == 0, "a model without a state"
    assert source.read_rows(ReadRows(5, 4, 2, 5, 5, state=True)).held == 0, "that of another stream"
    source.cancel(1)
    assert not source._exchange._states, "it is kept no longer than its sequence runs"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((0, 16), (0, 16), "row 0 does not follow on the 16 rows"),
        ((0, 16), (15, 16), "row 15 does not follow on the 16 rows"),
        ((0, 16), (17, 16), "row 17 does not follow on the 16 rows"),
        ((0, 16), (32, 10), "row 32 does not follow on the 16 rows"),
    ],
    ids=["twice", "before", "after", "out of order"],
)
def test_parts_follow_one_another(first: tuple[int, int], second: tuple[int, int], reason: str) -> None:
    source, target = running(), engine()
    assert target.write_rows(part(source, *first)).rows == 16
    refused = target.write_rows(part(source, *second))
    assert refused.rows == 0
    assert reason in refused.text
    assert target.write_rows(part(source, 16, 16)).rows == 0, "nothing more of the transfer is taken"
    assert target.gauges().retained_tokens == 16, "what came before stays a prefix"
    assert free(target) == 4


def test_a_transfer_does_not_begin_in_the_middle() -> None:
    assert "row 16 does not follow on the 0 rows" in engine().write_rows(part(running(), 16, 16)).text


def test_a_transfer_is_that_of_one_tenant() -> None:
    source, target = running(), engine()
    assert target.write_rows(part(source, 0, 16, tenant="one")).rows == 16
    assert target.write_rows(part(source, 16, 16, tenant="two")).rows == 0


@pytest.mark.parametrize("change", [-1, 1, -16 * ROW_BYTES])
def test_bytes_that_are_not_those_of_the_rows_are_refused(change: int) -> None:
    given, target = part(running(), 0, 16), engine()
    rows = given.rows[:change] if change < 0 else given.rows + b"x"
    refused = target.write_rows(WriteRows(6, 9, "", 0, given.tokens, rows, b""))
    assert refused.text == f"{len(rows)} bytes are not the rows of 16 tokens"
    assert target.write_rows(WriteRows(6, 9, "", 0, (), b"", b"")).text == "0 bytes are not the rows of 0 tokens"
    assert target.gauges().retained_tokens == 0


@pytest.mark.parametrize(("count", "taken"), [(CONTEXT, CONTEXT), (CONTEXT + 1, 0)])
def test_a_slot_takes_as_many_rows_as_its_context(count: int, taken: int) -> None:
    given = WriteRows(6, 9, "", 0, (1,) * count, bytes(count * ROW_BYTES), b"")
    assert engine().write_rows(given).rows == taken


def test_the_digest_covers_the_format_the_transfer_the_place_the_tokens_and_the_rows() -> None:
    given = part(running(), 0, 16)
    assert refusal(given, ROWS_FORMAT) is None
    for name, transfer, start, tokens, rows in (
        ("another", 9, 0, given.tokens, given.rows),
        (ROWS_FORMAT, 8, 0, given.tokens, given.rows),
        (ROWS_FORMAT, 9, 1, given.tokens, given.rows),
        (ROWS_FORMAT, 9, 0, given.tokens[::-1], given.rows),
        (ROWS_FORMAT, 9, 0, given.tokens, given.rows[::-1]),
    ):
        refused = refusal(WriteRows(6, transfer, "", start, tokens, rows, given.digest), name)
        assert refused is not None
        assert (refused.rows, "digest" in refused.text) == (0, True)
        assert rows_digest(name, transfer, start, tokens, rows) != given.digest


@pytest.mark.parametrize("options", [{"prefixes": PrefixPolicy(enabled=False)}, {"exact_rows": False}])
def test_a_worker_that_reuses_no_rows_has_no_format(options: dict[str, Any]) -> None:
    given, other = part(running(), 0, 16), running(**options)
    assert other.rows_format == ""
    assert other.write_rows(given).text == "this worker takes no rows of others"
    assert other.read_rows(ReadRows(5, 9, 1, 0, 1)).held == 0


def test_running_sequences_keep_their_slots_and_those_that_wait_get_the_next() -> None:
    given, target = part(running(), 0, 16), engine(slots=2)
    target.submit(EngineRequest(1, PROMPT))
    target.step()
    target.submit(EngineRequest(2, PROMPT))  # it gets the other slot in the next step
    assert target.write_rows(given).text == "no slot is left beside the 1 sequences that wait"
    target.step()
    assert target.write_rows(given).rows == 0
    target.cancel(2)
    assert target.write_rows(given).rows == 16, "in place of what an ended sequence has left"
    assert target.gauges().slots_active == 1


@pytest.mark.parametrize(("used", "taken"), [(CONTEXT - 16, 16), (CONTEXT - 15, 0)])
def test_rows_are_taken_while_the_pool_has_room(used: int, taken: int) -> None:
    source, target = running(), engine(kv_tokens=CONTEXT)
    target.submit(EngineRequest(1, tuple(range(used - 8)), max_tokens=8))
    target.step()
    assert target.write_rows(part(source, 0, 16)).rows == taken
    assert target.gauges().slots_active == 1


@pytest.mark.parametrize(("most", "taken"), [(32, 32), (31, 0)])
def test_no_more_rows_are_retained_than_configured(most: int, taken: int) -> None:
    source, target = running(), engine(prefixes=PrefixPolicy(max_rows=most))
    assert target.write_rows(part(source, 0, 16)).rows == 16
    assert target.write_rows(part(source, 16, 16)).rows == taken
    assert target.gauges().retained_tokens <= most


def test_rows_that_cannot_be_written_cost_their_slot_nothing() -> None:
    source, target = running(), engine(slots=1, make=BrokenOnce)
    assert target.write_rows(part(source, 0, 16)).rows == 16
    with capture_logs() as logs:
        assert "could not be written" in target.write_rows(part(source, 16, 16)).text
    assert [each["event"] for each in logs] == ["rows_not_written"]
    assert target.gauges().retained_tokens == 0
    assert target.write_rows(part(source, 0, 16)).rows == 16
    assert free(target) == 1


def test_transfers_that_nobody_goes_on_with_leave_the_slots_to_others() -> None:
    """As when the gateway is lost in their midst."""
    source, target = running(), engine(slots=2)
    for transfer in range(5):
        assert target.write_rows(part(source, 0, 16, transfer=transfer)).rows == 16
    assert target.gauges().retained_tokens == 32
    assert target.idle
    assert target.write_rows(part(source, 16, 16, transfer=0)).rows == 0, "its rows have given way"
    assert target.write_rows(part(source, 16, 16, transfer=4)).rows == 32
    assert free(target) == 2
    assert target.gauges().retained_tokens == 0
    assert target.write_rows(part(source, 32, 10, transfer=4)).rows == 0
