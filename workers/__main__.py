"""One worker process. Started by the gateway's supervisor with `baton_serve.start`, never by a person."""

import sys

if __name__ == "__main__":
    # structlog loads it where it is there, to draw tracebacks in colour: a tenth of the time that a worker needs to
    # import what it is made of, and it logs JSON.
    sys.modules["rich"] = None  # type: ignore[assignment]

import argparse
import functools
import logging
import os
import resource
import signal
from collections.abc import Sequence

import anyio
import msgspec
import structlog

from actors.process.logs import configure_logging
from actors.process.parent_death import ParentWatch, die_with_parent
from actors.transport.endpoint import EndpointError
from protocol.errors import ByeReason
from workers.process.exit_codes import EXIT_CODES, Left
from workers.process.service import WorkerService
from workers.process.spec import WorkerSpec

EXIT_USAGE = 2
SWITCH_S = 0.0005
"""How long the engine thread, back from the device, may wait for a busy event loop. The default of 5 ms is as long as
a decode step; the switches cost nothing that can be measured (bench/worker.py)."""


class SpecRefused(Exception):
    """The worker's specification is not JSON, misses a field or breaks a bound. The text names the field."""


def decode_spec(text: str) -> WorkerSpec:
    """Raises `SpecRefused`."""
    try:
        return msgspec.json.decode(text, type=WorkerSpec)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SpecRefused(f"--spec: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker to its end and return its exit code: 0 stopped, 2 bad arguments, others by `EXIT_CODES`."""
    # The terminal's Ctrl-C goes to the whole process group; the gateway decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="workers", description=__doc__)
    parser.add_argument(
        "--endpoint", required=True, help="address of the gateway's link, ipc://PATH or tcp://HOST:PORT"
    )
    parser.add_argument("--incarnation", required=True, type=int, help="number that the gateway gave this process")
    parser.add_argument("--spec", required=True, help="what to serve, as JSON")
    arguments = parser.parse_args(argv)
    configure_logging("worker", "info")
    log = structlog.get_logger()
    _leave_no_core()
    try:
        die_with_parent()
    except OSError as error:
        log.warning("may_outlive_parent", problem=str(error))  # its end of file on stdin is still watched
    try:
        spec = decode_spec(arguments.spec)
        configure_logging("worker", spec.log_level)
    except (SpecRefused, ValueError) as error:
        log.error("spec_refused", problem=str(error))
        return EXIT_USAGE
    sys.setswitchinterval(SWITCH_S)
    # One thread makes prompts; a pool beside it would take the engine's cores. The library reads this at each call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    service = WorkerService(spec, arguments.endpoint, arguments.incarnation)
    try:
        left = anyio.run(_serve, service)
    except EndpointError as error:
        log.error("endpoint_refused", problem=str(error))
        return EXIT_USAGE
    if left.stuck:
        # Whoever stops a worker while it loads or compiles finds it so.
        say = log.info if left.reason is ByeReason.STOPPED else log.error
        say("engine_stuck", reason=left.reason.value)
        _exit_now(left.exit_code)
    return left.exit_code


async def _serve(service: WorkerService) -> Left:
    gone = functools.partial(service.leave_threadsafe, ByeReason.ORPHANED, "the gateway is gone")
    watch = ParentWatch(gone, kill=functools.partial(_exit_now, EXIT_CODES[ByeReason.ORPHANED]))
    try:
        return await service.run(watch.start)
    finally:
        watch.end()


def _leave_no_core() -> None:
    """Writing gigabytes to a core file, or into a pipe, would come before the exit that the gateway waits for.

    1 is not 0: that one has no effect on a pipe (`kernel.core_pattern`), see core(5) and the kernel's fs/coredump.c.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))


def _exit_now(code: int) -> None:
    """Leave without the interpreter's farewell, which would wait for, or crash in, a thread inside native code."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
