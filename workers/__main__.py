"""Worker process. Started with `baton_serve.start` by the gateway's supervisor, not by hand."""

import gc
import sys

if __name__ == "__main__":
    # Imports and loading create a million objects that stay. Collecting garbage meanwhile takes a fifth of that time.
    gc.set_threshold(200_000)
    # structlog imports rich if it is installed, for coloured tracebacks. That takes a tenth of the worker's import
    # time, and the worker logs JSON.
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
from workers.load_options import Progress
from workers.process.exit_codes import EXIT_CODES, WorkerExit
from workers.process.loading import Loaded, load
from workers.process.service import WorkerService
from workers.process.spec import WorkerSpec

EXIT_USAGE = 2
GC_THRESHOLD = 700
"""The threshold of the garbage collector once the model is loaded: Python's own default."""
SWITCH_S = 0.0005
"""Maximum time that the engine thread waits for the GIL after a device call. The default of 5 ms is as long as a decode
step, and the shorter interval has no measurable cost (bench/overhead/worker.py)."""


class SpecRefused(Exception):
    """Raised when the specification is not JSON, lacks a field or exceeds a bound. The text names the field."""


def decode_spec(text: str) -> WorkerSpec:
    """Decode the `--spec` argument. Raises `SpecRefused`."""
    try:
        return msgspec.json.decode(text, type=WorkerSpec)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SpecRefused(f"--spec: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker and return its exit code: 0 stopped, 2 invalid arguments, others from `EXIT_CODES`."""
    # Ctrl-C in a terminal reaches the whole process group, but the gateway decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="workers", description=__doc__)
    parser.add_argument(
        "--endpoint", required=True, help="address of the gateway's link, ipc://PATH or tcp://HOST:PORT"
    )
    parser.add_argument("--incarnation", required=True, type=int, help="number that the gateway gave this process")
    parser.add_argument("--spec", required=True, help="specification of the worker, as JSON")
    arguments = parser.parse_args(argv)
    configure_logging("worker", "info")
    log = structlog.get_logger()
    _disable_core_dumps()
    try:
        die_with_parent()
    except OSError as error:
        log.warning("may_outlive_parent", problem=str(error))  # the end of its standard input is still watched
    try:
        spec = decode_spec(arguments.spec)
        configure_logging("worker", spec.log_level)
    except (SpecRefused, ValueError) as error:
        log.error("spec_refused", problem=str(error))
        return EXIT_USAGE
    sys.setswitchinterval(SWITCH_S)
    # One thread tokenizes; a thread pool would compete with the engine for cores. The library reads this at each call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    service = WorkerService(spec, arguments.endpoint, arguments.incarnation, load=load_and_freeze)
    try:
        outcome = anyio.run(_serve, service)
    except EndpointError as error:
        log.error("endpoint_refused", problem=str(error))
        return EXIT_USAGE
    if outcome.stuck:
        # A worker that is stopped while it loads or compiles is usually stuck.
        say = log.info if outcome.reason is ByeReason.STOPPED else log.error
        say("engine_stuck", reason=outcome.reason.value)
        _exit_now(outcome.exit_code)
    gc.unfreeze()  # what is never collected, nanobind reports as leaks when the interpreter ends
    return outcome.exit_code


def load_and_freeze(spec: WorkerSpec, progress: Progress) -> Loaded:
    """Load the model. Then collect garbage again at the default pace, but not among the objects that exist by now: a
    full collection of them takes longer than a step."""
    loaded = load(spec, progress)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    return loaded


async def _serve(service: WorkerService) -> WorkerExit:
    gone = functools.partial(service.leave_threadsafe, ByeReason.ORPHANED, "the gateway is gone")
    watch = ParentWatch(gone, kill=functools.partial(_exit_now, EXIT_CODES[ByeReason.ORPHANED]))
    try:
        return await service.run(watch.start)
    finally:
        watch.end()


def _disable_core_dumps() -> None:
    """Disable core dumps: gigabytes written to a file or pipe would delay the exit that the gateway waits for.

    The limit is 1 because 0 has no effect on a pipe (`kernel.core_pattern`), see core(5) and the kernel's
    fs/coredump.c.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))


def _exit_now(code: int) -> None:
    """Exit without the interpreter's shutdown, which would wait for, or crash in, a thread inside native code."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
