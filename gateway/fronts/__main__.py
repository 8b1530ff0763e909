"""Process of a front. Started with `baton_serve.start` by the gateway, not by hand."""

import argparse
import functools
import logging
import os
import signal
import sys
from collections.abc import Sequence

import anyio
import msgspec
import structlog

from actors.process.logs import configure_logging
from actors.process.parent_death import ParentWatch, die_with_parent
from actors.transport.endpoint import EndpointError
from gateway.fronts.server import FrontServer
from gateway.fronts.spec import FrontSpec
from gateway.garbage_collection import collect_rarely
from gateway.http.tls import TlsInvalid

EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_ORPHANED = 3

_log = structlog.get_logger("gateway.fronts")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a front and return its exit code: 0 it has left, 1 it could not serve, 2 invalid arguments, 3 the gateway
    is gone."""
    # Ctrl-C in a terminal, and the stop of a service, may reach all processes, but the gateway decides when its fronts
    # end: after the streams that they still send.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="gateway.fronts", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="address of the gateway's link, ipc://PATH")
    parser.add_argument("--spec", required=True, help="specification of the front, as JSON")
    arguments = parser.parse_args(argv)
    configure_logging("front", "info")
    try:
        die_with_parent()
    except OSError as error:
        _log.warning("may_outlive_parent", problem=str(error))  # the end of its standard input is still watched
    try:
        spec = msgspec.json.decode(arguments.spec, type=FrontSpec)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        _log.error("spec_refused", problem=f"--spec: {error}")
        return EXIT_USAGE
    collect_rarely()
    try:
        anyio.run(_serve, spec, arguments.endpoint)
    except (EndpointError, TlsInvalid) as error:
        _log.error("front_refused", problem=str(error))
        return EXIT_FAILED
    return 0


async def _serve(spec: FrontSpec, endpoint: str) -> None:
    watch = ParentWatch(functools.partial(_orphaned, "the gateway is gone"), kill=_exit_now)
    watch.start()
    try:
        await FrontServer(spec, endpoint, _orphaned).run()
    finally:
        watch.end()


def _orphaned(reason: str) -> None:
    """End at once: no request can be answered any more. The kernel closes the connections."""
    _log.info("front_orphaned", reason=reason)
    _exit_now()


def _exit_now() -> None:
    logging.shutdown()
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
