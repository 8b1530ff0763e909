"""Packet link: two network namespaces, joined by two TUN devices whose packets this process forwards.

TCP on both sides is the kernel's, so lost packets are sent again after its own timers, and reordered ones are put in
order by it. `tc netem` does the same in the kernel, where the kernel has it. Needs Linux, /dev/net/tun, and the
capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN, as root has them.
"""

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from bench.networks.impairment import Direction, Impairment

GATEWAY, WORKER = "10.77.0.1", "10.77.0.2"
"""The addresses of the two sides."""
MTU = 1500
_CLONE_NEWNET = 0x40000000  # sched.h
_TUNSETIFF = 0x400454CA  # linux/if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
_SIOCSIFADDR, _SIOCSIFDSTADDR, _SIOCSIFFLAGS = 0x8916, 0x8918, 0x8914  # linux/sockios.h
_UP_RUNNING = 0x1 | 0x40
_NAME = b"baton0"

Result = TypeVar("Result")


class NoNamespaces(Exception):
    """Raised where the system does not let this process make network namespaces or TUN devices."""


class Namespace:
    """A network namespace with a TUN device. What `run` calls makes sockets, and starts processes, inside."""

    def __init__(self, own: str, other: str) -> None:
        """`own` is the address here, `other` that of the other side. Raises `NoNamespaces`."""
        self.device = -1
        try:
            self._file = self._in_new_thread(lambda: self._make(own, other))
        except OSError as error:
            raise NoNamespaces(f"network namespaces and TUN devices: {error}") from error

    def run(self, call: Callable[[], Result]) -> Result:
        """Call a function in the namespace, on a thread of its own."""

        def inside() -> Result:
            _check(_libc().setns(self._file, _CLONE_NEWNET))
            return call()

        return self._in_new_thread(inside)

    def close(self) -> None:
        os.close(self.device)
        os.close(self._file)

    def _make(self, own: str, other: str) -> int:
        _check(_libc().unshare(_CLONE_NEWNET))
        self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.device, _TUNSETIFF, struct.pack("16sH22x", _NAME, _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, address in ((_SIOCSIFADDR, own), (_SIOCSIFDSTADDR, other)):
                packed = struct.pack("16sHH4s16x", _NAME, socket.AF_INET, 0, socket.inet_aton(address))
                fcntl.ioctl(control, request, packed)
            for name in (b"lo", _NAME):
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _UP_RUNNING))
        return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)

    @staticmethod
    def _in_new_thread(call: Callable[[], Result]) -> Result:
        """The namespace of a thread does not change back: hence one for each call."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).result()


class PacketLink:
    """Forwards the packets of a gateway's namespace and a worker's, with an impairment. Used on the event loop."""

    def __init__(self, impairment: Impairment, seed: int = 1) -> None:
        """Raises `NoNamespaces`."""
        if sys.platform != "linux" or not Path("/dev/net/tun").exists():
            raise NoNamespaces("this system has no TUN devices")
        self.gateway = Namespace(GATEWAY, WORKER)
        self.worker = Namespace(WORKER, GATEWAY)
        self.to_worker = Direction(impairment, seed)
        self.to_gateway = Direction(impairment, seed + 1)
        self.forwarded = self.lost = 0
        """Packets so far, in both directions."""
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()

    def set(self, impairment: Impairment) -> None:
        """Change the impairment of both directions."""
        self.to_worker.impairment = self.to_gateway.impairment = impairment

    def interrupt(self, *, to_worker: bool = True, to_gateway: bool = True) -> None:
        """Lose all packets of these directions from now on."""
        self.to_worker.up, self.to_gateway.up = not to_worker, not to_gateway

    def heal(self) -> None:
        """Forward packets again."""
        self.interrupt(to_worker=False, to_gateway=False)

    def __enter__(self) -> Self:
        ways = ((self.gateway, self.worker, self.to_worker), (self.worker, self.gateway, self.to_gateway))
        for source, target, direction in ways:
            self._loop.add_reader(source.device, self._forward, source.device, target.device, direction)
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for side in (self.gateway, self.worker):
            self._loop.remove_reader(side.device)
            side.close()

    def _forward(self, source: int, target: int, direction: Direction) -> None:
        while True:
            try:
                packet = os.read(source, MTU)
            except BlockingIOError:
                return
            now = self._loop.time()
            at = direction.leaves_at(len(packet), now)
            if at is None:
                self.lost += 1
            elif at <= now:
                self._write(target, packet)
            else:
                self._later(at, target, packet)

    def _later(self, at: float, target: int, packet: bytes) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self._write(target, packet)

        timer = self._loop.call_at(at, due)
        self._timers.add(timer)

    def _write(self, target: int, packet: bytes) -> None:
        try:
            os.write(target, packet)
            self.forwarded += 1
        except BlockingIOError:  # as a router whose queue is full
            self.lost += 1


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
