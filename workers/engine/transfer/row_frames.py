"""Frames of cache rows: the digest of those that arrive is checked, and that of those that leave is computed.

Runs on the event loop: a megabyte takes about a millisecond."""

from protocol.commands import WriteRows
from protocol.events import Rows, RowsWritten
from protocol.rows_digest import rows_digest, state_format
from workers.engine.transfer.row_exchange import RowsAnswer, RowsRead


def refusal(given: WriteRows, rows_format: str) -> RowsWritten | None:
    """Return the answer to rows that a worker with this format does not take; None if their digest is right."""
    if given.state:
        rows_format = state_format(rows_format, given.state)
    if rows_digest(rows_format, given.transfer, given.start, given.tokens, given.rows) == given.digest:
        return None
    return RowsWritten(given.query, text="the digest is not that of these rows in this format")


def rows_frame(answer: RowsAnswer, rows_format: str) -> Rows | RowsWritten:
    """Return the frame of an answer of the engine."""
    if not isinstance(answer, RowsRead):
        return RowsWritten(answer.query, answer.rows, answer.text)
    asked, tokens, rows = answer.asked, answer.tokens, bytes(answer.rows)
    if asked.state:
        rows_format = state_format(rows_format, answer.held)
    digest = rows_digest(rows_format, asked.transfer, asked.start, tokens, rows) if rows else b""
    return Rows(asked.query, answer.held, tokens, rows, digest, answer.state)
