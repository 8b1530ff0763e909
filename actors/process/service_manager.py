"""Messages to systemd for a unit with `Type=notify`: ready, stopping, and signs of life for its watchdog.

The protocol is that of sd_notify(3): a message is a datagram to the Unix socket that $NOTIFY_SOCKET names. Without the
variable nothing is sent.
"""

import os
import socket
from collections.abc import Mapping

import anyio
import structlog

_log = structlog.get_logger("actors.process.service_manager")

PINGS = 2
"""Signs of life within the time of the watchdog."""


class ServiceManager:
    """The service manager that has started this process. Each state is sent once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read $NOTIFY_SOCKET, and $WATCHDOG_USEC unless $WATCHDOG_PID names another process."""
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._sent: set[str] = set()
        own = environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "")
        timed = own and bool(self._address) and microseconds.isascii() and microseconds.isdigit()
        self.watchdog_s = int(microseconds) / 1e6 if timed else 0.0
        """Seconds after which the service manager ends a process that gave no sign of life; 0 if it does not watch."""

    def ready(self) -> None:
        """Report that requests are answered. Names this process as the main one: after a take-over within one unit it
        is not the one that the service manager has started."""
        self._send_once("READY=1", f"MAINPID={os.getpid()}", "STATUS=Serves")

    def stopping(self) -> None:
        """Report that the shutdown has begun."""
        self._send_once("STOPPING=1", "STATUS=Shuts down")

    def hands_over(self) -> None:
        """Report that another gateway has the port. The process finishes its requests, without the time limit that
        systemd has for a unit which is stopping."""
        self._send_once("STATUS=Another gateway has taken over; finishes the requests that it has")

    async def keep_alive(self) -> None:
        """Give signs of life for as long as the event loop runs; return at once if nobody watches."""
        while self.watchdog_s:
            self._send("WATCHDOG=1")
            await anyio.sleep(self.watchdog_s / PINGS)

    def _send_once(self, *assignments: str) -> None:
        if assignments[0] not in self._sent:
            self._sent.add(assignments[0])
            self._send(*assignments)

    def _send(self, *assignments: str) -> None:
        """Send without waiting. A failure is logged: the service manager acts on what it has not received."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            _log.warning("service_manager_not_notified", message=assignments[0], problem=str(error))
