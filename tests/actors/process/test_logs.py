"""Log lines: JSON, one event each, from structlog and from the standard library."""

import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from actors.process.logs import MAX_FIELDS, configure_logging, forward, get_logger


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.NOTSET)
    logging.raiseExceptions = raising
    structlog.reset_defaults()


Capture = pytest.CaptureFixture[str]


def lines(capsys: Capture) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_from_both_kinds_of_logger(capsys: Capture) -> None:
    configure_logging("gateway", "info")
    get_logger().info("started", port=8000, peer=frozenset({1}))
    logging.getLogger("library").warning("says %s", "so")
    get_logger().debug("hidden")
    first, second = lines(capsys)
    assert first.pop("timestamp")
    assert first == {
        "event": "started", "level": "info", "process": "gateway", "port": 8000, "peer": [1]
    }  # fmt: skip
    assert (second["event"], second["level"], second["process"]) == ("says so", "warning", "gateway")


def test_an_exception_is_one_line(capsys: Capture) -> None:
    configure_logging("gateway", "info", json=True)
    try:
        raise LookupError("lost")
    except LookupError:
        get_logger().exception("failed", odd=object)
    (line,) = lines(capsys)
    assert "LookupError: lost" in str(line["exception"])


def test_a_file_name_that_is_no_unicode_does_not_lose_its_line(capsys: Capture) -> None:
    configure_logging("gateway", "info", json=True)
    get_logger().error(
        "not_reloaded", file=os.fsdecode(b"/k\xc3\xa4/\xff.pem"), keys=frozenset({"a"}), why=ValueError("x")
    )
    (line,) = lines(capsys)
    assert (line["event"], line["file"]) == ("not_reloaded", "/kä/?.pem")


def test_for_a_person(capsys: Capture) -> None:
    configure_logging("gateway", "info", json=False)
    get_logger().info("started", port=8000)
    assert "port=8000" in capsys.readouterr().err


def test_configuring_twice_says_things_once(capsys: Capture) -> None:
    configure_logging("one", "info")
    configure_logging("two", "warning")
    logger = get_logger()
    logger.info("hidden")
    logger.warning("said")
    assert [line["process"] for line in lines(capsys)] == ["two"]


@pytest.mark.parametrize(("level", "logged"), [("debug", True), ("info", False), ("error", False)])
def test_requests_to_another_gateway_are_told_to_who_looks_for_a_defect(
    capsys: Capture, level: str, logged: bool
) -> None:
    configure_logging("gateway", level)
    logging.getLogger("httpx").info("HTTP Request: POST ...")
    assert bool(lines(capsys)) == logged


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ValueError, match="level: 'loud' is not one of debug"):
        configure_logging("gateway", "loud")


def test_a_worker_s_line_keeps_its_fields_but_not_its_claims(capsys: Capture) -> None:
    configure_logging("gateway", "info")
    said = {"event": "loaded", "level": "error", "worker": "liar", "self": 1, "_record": 2, "exc_info": True, "n": 3}
    forward(json.dumps(said | {"process": "worker"}).encode(), "w1", 2)
    (line,) = lines(capsys)
    assert line.pop("timestamp")
    assert line == {
        "event": "loaded", "level": "error", "worker": "w1", "incarnation": 2, "process": "worker", "n": 3
    }  # fmt: skip


RAW = {"plain": b"plain", "list": b"[1, 2]", "no event": b'{"no": 1}', "cut": b'{"event":', "bytes": b"\xff\xfe"}


@pytest.mark.parametrize("raw", [*RAW.values(), b"[" * 5000], ids=[*RAW, "deep"])
def test_anything_else_is_raw_text(capsys: Capture, raw: bytes) -> None:
    configure_logging("gateway", "info")
    forward(raw, "w1", 1)
    (line,) = lines(capsys)
    assert line["event"] == "worker_output"
    assert line["text"] == raw.decode("utf-8", "replace")


def test_escapes_and_empty_lines_do_not_reach_a_terminal(capsys: Capture) -> None:
    configure_logging("gateway", "info", json=False)
    forward(b"  \r", "w1", 1)
    assert capsys.readouterr().err == ""
    forward(b"\x1b]0;title\x07text", "w1", 1)
    assert "\x1b]" not in capsys.readouterr().err


def test_many_fields_are_bounded(capsys: Capture) -> None:
    configure_logging("gateway", "info")
    forward(json.dumps({"event": "e"} | {f"k{n}": n for n in range(1000)}).encode(), "w1", 1)
    (line,) = lines(capsys)
    assert len(line) <= MAX_FIELDS + 6
