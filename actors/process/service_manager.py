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
AGAIN_S = 1.0
"""Time after which a state is sent again that the service manager did not take."""


class ServiceManager:
    """The service manager that has started this process. It takes each state once.

    A state that it does not take, as its queue is full or while it is started again, is kept and sent again by
    `keep_alive`: without READY=1, it would end the unit after its time limit.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read $NOTIFY_SOCKET, and $WATCHDOG_USEC unless $WATCHDOG_PID names another process."""
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._states: set[str] = set()
        """Those that were reported."""
        self._unsent: list[tuple[str, ...]] = []
        """Those that it has not taken, in their order."""
        self._failing = False
        """The last message could not be sent."""
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
        """Give signs of life, and send states again, for as long as the event loop runs; return at once without a
        service manager."""
        while self._address:
            if self.watchdog_s:
                self._send("WATCHDOG=1")
            self._send_states()
            await anyio.sleep(min(self.watchdog_s / PINGS or AGAIN_S, AGAIN_S))

    def _send_once(self, *assignments: str) -> None:
        if self._address and assignments[0] not in self._states:
            self._states.add(assignments[0])
            self._unsent.append(assignments)
            self._send_states()

    def _send_states(self) -> None:
        while self._unsent and self._send(*self._unsent[0]):
            del self._unsent[0]

    def _send(self, *assignments: str) -> bool:
        """Send without waiting. False after a failure, of which the first of several in a row is logged."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            if not self._failing:
                _log.warning("service_manager_not_notified", message=assignments[0], problem=str(error))
            self._failing = True
            return False
        self._failing = False
        return True
