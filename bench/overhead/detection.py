"""Time until the loss of a worker is known, and until a standby answers in its place.

    python bench/overhead/detection.py [--backend scripted] [--rounds 20]

A gateway without its HTTP side runs one active worker and one standby. In each round the active one, which has a
stream, is ended (SIGKILL, or SIGABRT as native code does) or suspended (SIGSTOP). Measured from that moment are the
time until the router is notified of the loss, and until the first token of a request that the standby got at once.
Printed first is the CPU time of the idle standby, in percent of one core. There is no peer; the limit is 0. Needs
Linux, for the CPU time of another process.
"""

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio

from actors.actor import Ref
from actors.process.logs import configure_logging
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import IncarnationLost
from actors.system import ActorSystem
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.options import add_cache_dir
from cli.config.launch import worker_launches
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member
from gateway.fleet.messages import AwaitSettled, FleetMessage, StopAll
from gateway.openai.decoding import RequestDecoder
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings

READY_S = 600.0
HANG_S = 1.0
"""The minimum time after which a worker counts as hanging, here. A suspension counts as a hang where the system does
not report it."""
FAULTS = {"SIGKILL": signal.SIGKILL, "SIGABRT": signal.SIGABRT, "SIGSTOP": signal.SIGSTOP}


class Observer(Router):
    """A router that records when it is notified of a loss."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self.lost_at = 0.0
        self.lost = anyio.Event()

    def worker_lost(self, lost: IncarnationLost) -> None:
        """Record the time, then do what a router does."""
        self.lost_at = time.perf_counter()
        super().worker_lost(lost)
        self.lost.set()


@dataclass
class Times:
    """Milliseconds after one kind of fault."""

    lost: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)


async def measure(settings: Settings, rounds: int, idle_s: float) -> None:
    """Run all rounds and print a table."""
    model = ChosenModel.choose(settings)
    router = Observer(GatewaySettings())
    limits = Deadlines(hang=HANG_S, stop=0.2, term=0.2)
    policy = RestartPolicy(max_failures=64, window_s=0.001, first_delay_s=0.0)
    decoder = RequestDecoder(GatewaySettings())
    body = b'{"model": "%s", "prompt": "The capital of", "stream": true, "max_tokens": %d, "ignore_eos": true}'
    async with ActorSystem() as system:
        routes = system.spawn("router", router)
        fleet = Fleet(router, routes, worker_launches(settings, model), policy=policy, deadlines=limits)
        ref = system.spawn("fleet", fleet)
        await ready(ref)
        standby = next(member for member in fleet.members.values() if router.pool[member.name].role is Role.STANDBY)
        idle = await idle_cpu(standby, idle_s)
        print(f"{settings.backend}: a standby that idles uses {idle:.2f} % of a core")
        print(f"{'fault':<9}{'known after, ms':>36}{'first token after, ms':>36}")
        for name, number in FAULTS.items():
            times = Times()
            for _ in range(rounds if number is not signal.SIGSTOP else max(1, rounds // 4)):
                live = router.admission.open(decoder.completion(body % (model.name.encode(), 1000)).request, "live")
                await live.wait()
                router.lost = anyio.Event()
                victim = fleet.members[live.worker]
                began = time.perf_counter()
                os.kill(victim.status.pid or 0, number)
                await router.lost.wait()
                times.lost.append((router.lost_at - began) * 1000)
                call = router.admission.open(decoder.completion(body % (model.name.encode(), 1)).request, "next")
                await call.wait()
                times.first_token.append((time.perf_counter() - began) * 1000)
                live.cancel_nowait()
                call.cancel_nowait()
                await ready(ref)
            print(f"{name:<9}{summary(times.lost):>36}{summary(times.first_token):>36}")
        await ref.ask(StopAll, timeout=30)


async def ready(fleet: Ref[FleetMessage]) -> None:
    """Wait until all workers are ready."""
    if unserved := await fleet.ask(AwaitSettled, timeout=READY_S):
        raise RuntimeError(unserved)


async def idle_cpu(member: Member, seconds: float) -> float:
    """CPU time of a worker in percent of one core (Linux)."""
    stat = anyio.Path(f"/proc/{member.status.pid}/stat")
    before = await stat.read_text()
    await anyio.sleep(seconds)
    ticks = _ticks(await stat.read_text()) - _ticks(before)
    return 100 * ticks / os.sysconf("SC_CLK_TCK") / seconds


def _ticks(stat: str) -> int:
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def summary(times: list[float]) -> str:
    """The median, the 99th percentile (of few times: the maximum) and the maximum."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):.1f}  p99 {p99:.1f}  max {ordered[-1]:.1f}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--backend", choices=["iree", "mlx", "scripted"], default="scripted", help="what computes")
    parser.add_argument("--rounds", type=at_least(1), default=20, help="kills of each kind; a quarter as many SIGSTOPs")
    parser.add_argument("--idle-seconds", type=above_zero, default=5.0, help="that the idle standby is measured")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"rounds": 1, "idle_seconds": 0.2})


def main() -> None:
    args = arguments()
    configure_logging("bench", "critical")
    cache = str(args.cache_dir / "graphs")
    settings = Settings(backend=args.backend, standby=1, cache_dir=cache, log_level="error")
    anyio.run(measure, settings, args.rounds, args.idle_seconds)


if __name__ == "__main__":
    main()
