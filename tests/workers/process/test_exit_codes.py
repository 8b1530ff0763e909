"""Exit codes of a worker: one per reason, distinct from others, and documented."""

from pathlib import Path

from protocol.errors import ByeReason
from workers.__main__ import EXIT_USAGE
from workers.process.exit_codes import EXIT_CODES, WorkerExit

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "command-line.md"


def test_every_reason_has_its_own_status() -> None:
    assert set(EXIT_CODES) == set(ByeReason) - {ByeReason.DIED, ByeReason.KILLED}, (
        "of a death its supervisor speaks, not the process"
    )
    assert len(set(EXIT_CODES.values()) | {EXIT_USAGE}) == len(EXIT_CODES) + 1
    assert all(WorkerExit(reason, stuck=False).exit_code == code for reason, code in EXIT_CODES.items())


def test_the_statuses_are_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for reason, code in EXIT_CODES.items():
        assert f"| {code} | `{reason.value}` |" in text
    assert f"| {EXIT_USAGE} | - |" in text
