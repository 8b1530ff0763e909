"""Logging, set up once for every process: one event name a line with bound fields, JSON unless a person is watching.

A worker's lines go to its stderr, a pipe; `forward` says them again in the gateway's log, with the worker's name bound.
"""

import functools
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from types import TracebackType
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from actors.process.log_handler import LogHandler

MAX_FIELDS = 64
"""Fields of one worker line that are carried on; the rest are left out."""
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_RESERVED = frozenset(
    {"event", "level", "timestamp", "worker", "incarnation", "front", "self", "exc_info", "stack_info"}
)

get_logger = structlog.get_logger


def configure_logging(process: str, level: str, json: bool | None = None) -> None:
    """Send structlog's and the standard library's records of this process to stderr.

    `process` is bound to every line; `json` None means JSON when stderr is not a terminal. Raises `ValueError` when
    `level` is not one of debug, info, warning, error, critical.
    """
    try:
        number = LEVELS[level.lower()]
    except KeyError:
        raise ValueError(f"level: {level!r} is not one of {', '.join(LEVELS)}") from None
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        functools.partial(_bind, process),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = LogHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(as_json)],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    # httpx logs each request to another gateway at "info", which is only useful for debugging.
    logging.getLogger("httpx").setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
    logging.raiseExceptions = False  # a log pipe whose reader is gone must not print tracebacks into itself


@contextmanager
def log_what_python_prints() -> Iterator[None]:
    """Log what Python prints to stderr as text by itself: warnings, and exceptions of threads and finalizers."""
    logger = get_logger("python")

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = "" if args.thread is None else args.thread.name
            logger.error("thread_failed", thread=name, exc_info=_exc_info(args.exc_value))

    def unraisable(args: "sys.UnraisableHookArgs") -> None:
        problem = args.err_msg or "an exception was ignored"
        failed = _exc_info(args.exc_value) if args.exc_value is not None else None
        logger.error("exception_ignored", problem=problem, object=repr(args.object), exc_info=failed)

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook, sys.unraisablehook = before


def _exc_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return type(error), error, error.__traceback__


def forward(line: bytes, worker: str, incarnation: int) -> None:
    """Say one line of a worker's stderr again: a JSON object as the event that it is, anything else as raw text."""
    logger = get_logger("worker").bind(worker=worker, incarnation=incarnation)
    if (text := _repeat(line, logger)) is not None:
        logger.info("worker_output", text=text)


def forward_front(line: bytes, front: int) -> None:
    """Say one line of a front's stderr again, likewise."""
    logger = get_logger("front").bind(front=front)
    if (text := _repeat(line, logger)) is not None:
        logger.info("front_output", text=text)


def _repeat(line: bytes, logger: Any) -> str | None:
    """Log the event that a line is. Returns the text of one that is no event, unless it is empty."""
    fields = _parse(line)
    if fields is None:
        return line.decode("utf-8", "replace").translate(_CONTROLS).strip() or None
    level = LEVELS.get(str(fields.get("level")), logging.INFO)
    extra = {
        str(key)[:64]: value
        for key, value in list(fields.items())[:MAX_FIELDS]
        if key not in _RESERVED and not key.startswith("_")
    }
    logger.log(level, str(fields["event"])[:1024], **extra)
    return None


_CONTROLS = dict.fromkeys((*range(32), 127), " ")


def _parse(line: bytes) -> Mapping[str, Any] | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) and "event" in value else None


def _bind(process: str, _logger: Any, _method: str, event: EventDict) -> EventDict:
    """Bind the process's name, unless the line came from another process and has its name."""
    event.setdefault("process", process)
    return event


def _renderers(as_json: bool) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _to_json(value: Any, **_: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except UnicodeEncodeError:  # of a file name that is not UTF-8
        return dumps(value, default=repr, ensure_ascii=False).encode("utf-8", "replace").decode()
