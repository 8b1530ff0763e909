"""The rows that a head for multi-token prediction has yet to compute. A hidden state is the name of its token."""

from workers.engine.speculation.mtp.head_rows import HeadRows, HeadRun

Rows = HeadRows[str]


def follow(rows: Rows, tokens: str, start: int = 0, slot: int = 0) -> None:
    """Compute rows whose tokens and hidden states are these letters; an upper case one is a hidden state."""
    rows.computed(slot, start, start + 100, [ord(each) for each in tokens], tokens.upper())


def pairs(runs: list[HeadRun[str]]) -> list[tuple[int, int, str, str]]:
    """Slot, row, hidden state and token of each row."""
    return [
        (run.slot, run.start + at, hidden, chr(token))
        for run in runs
        for at, (token, hidden) in enumerate(zip(run.tokens, run.hidden, strict=True))
    ]


def taken(rows: Rows) -> list[tuple[int, int, str, str]]:
    assert rows.waiting == sum(len(run.tokens) for waiting in rows._waiting for run in waiting)
    return pairs(list(rows.take()))


def test_a_row_waits_once_the_next_token_is_computed() -> None:
    rows: Rows = HeadRows(2)
    follow(rows, "abc")
    assert taken(rows) == [(0, 0, "A", "b"), (0, 1, "B", "c")]
    follow(rows, "de", 3)
    assert taken(rows) == [(0, 2, "C", "d"), (0, 3, "D", "e")]
    assert taken(rows) == []


def test_the_next_row_has_the_position_of_its_hidden_state() -> None:
    rows: Rows = HeadRows(2)
    follow(rows, "abc")
    assert rows.next(0, 3, 7) == HeadRun(0, 2, 102, (7,), "C")
    assert rows.next(0, 1, 7) == HeadRun(0, 0, 100, (7,), "A")
    assert rows.next(0, 0, 7) is rows.next(0, 4, 7) is rows.next(1, 3, 7) is None


def test_rows_of_rejected_tokens_are_dropped() -> None:
    rows: Rows = HeadRows(1)
    follow(rows, "abc")
    follow(rows, "dxy", 3)
    follow(rows, "ef", 4)
    assert taken(rows) == [(0, 0, "A", "b"), (0, 1, "B", "c"), (0, 2, "C", "d"), (0, 3, "D", "e"), (0, 4, "E", "f")]


def test_the_row_of_a_draft_is_not_computed_again() -> None:
    rows: Rows = HeadRows(1)
    follow(rows, "ab")
    taken(rows)
    for token, again in (("c", []), ("d", [(0, 1, "B", "d")])):
        run = rows.next(0, 2, ord("c"))
        assert run is not None
        rows.drafted(run, "x")
        deeper = rows.next(0, 3, ord("e"))
        assert deeper == HeadRun(0, 2, 102, (ord("e"),), "x")
        follow(rows, token, 2)
        assert taken(rows) == again
        follow(rows, "ab")
        taken(rows)


def test_copied_rows_wait_in_both_slots() -> None:
    rows: Rows = HeadRows(2)
    follow(rows, "abcd")
    rows.copy(0, 1, 3)
    assert rows.next(1, 3, 0) is not None
    assert rows.next(1, 4, 0) is rows.next(1, 2, 0) is None
    follow(rows, "x", 3, slot=1)
    first = [(0, 0, "A", "b"), (0, 1, "B", "c"), (0, 2, "C", "d")]
    assert taken(rows) == [*first, (1, 0, "A", "b"), (1, 1, "B", "c"), (1, 2, "C", "x")]


def test_a_truncated_slot_keeps_what_is_before() -> None:
    rows: Rows = HeadRows(1)
    follow(rows, "abcd")
    rows.copy(0, 0, 2)
    follow(rows, "x", 2)
    assert taken(rows) == [(0, 0, "A", "b"), (0, 1, "B", "x")]


def test_nothing_is_known_of_a_slot_that_is_forgotten() -> None:
    rows: Rows = HeadRows(2)
    follow(rows, "abc")
    follow(rows, "abc", slot=1)
    rows.forget(0)
    assert rows.next(0, 3, 0) is None
    assert taken(rows) == [(1, 0, "A", "b"), (1, 1, "B", "c")]
    follow(rows, "e", 3)
    assert taken(rows) == []


def test_only_slots_that_are_followed_are_noted() -> None:
    rows: Rows = HeadRows(3)
    assert rows.follows(1, prompt=False)
    follow(rows, "abc", slot=1)
    assert not rows.idle
    rows.follow(0)
    assert (rows.idle, rows.waiting) == (True, 0)
    assert rows.next(1, 3, 0) is None
    assert not any(rows.follows(slot, prompt=True) for slot in range(3))
    rows.follow(1)
    assert not rows.follows(0, prompt=False), "an answer that runs"
    assert rows.follows(2, prompt=True)
    assert not rows.follows(0, prompt=True), "one more"
    assert rows.follows(2, prompt=False)
    rows.copy(2, 0, 0)
    rows.copy(1, 2, 0)
    assert [rows.follows(slot, prompt=False) for slot in range(3)] == [True, False, False], "as where they come from"
    rows.follow(None)
    assert all(rows.follows(slot, prompt=False) for slot in range(3))
