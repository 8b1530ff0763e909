"""A soak: mixed requests to a server whose workers fail all the time, and what was lost, altered or leaked.

    python bench/soak.py [--minutes 20] [--clients 64] [--seed N] [--scripted | --backend mlx] [--out FOLDER]

Clients send completions and chats, streamed or whole, greedy or sampled, with one or several choices, stop strings,
penalties, long and short prompts; some leave before the end, and close or reset their connection. Each request is
answered undisturbed first, and every later answer is compared with that one. Then workers are killed and suspended from
outside every --every seconds on average, and faults within are planned for each of their incarnations but the first
(bench/soak_test/fault_plan.py), whatever computes there: the built-in model on IREE or MLX, or with --scripted no
model. All follows from the seed, which is printed; --seed repeats its plan.
With --attackers, others attack the server all the time (bench/soak_test/attackers.py), and the report has their table,
the slowest answer to a probe and the longest turn of the gateway's event loop.

It ends with status 1 when

  a visit     did not end exactly once, ended with an error other than quarantined, step_failed or not_finite, or
              differs from the undisturbed answer in an id, character, finish reason or count (of one that left: in
              what it had received);
              or it ended with one of these errors, although the server's log has less than two deaths from within or
              failed steps that it lived through, and less than four deaths of any kind; or more than 1 % ended so
  the server  does not have all workers ready and all slots free within a minute after the last request
  something   was not released: sequences, processes, descriptors, threads, socket folders; or memory grew
              (bench/soak_test/leaks.py)
  an attack   was neither answered nor closed

--out gets the table, the samples, a plot and the server's log.
"""

import argparse
import asyncio
import functools
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from actors.supervision.deadlines import Deadlines
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.loop_watchdog import LongestTurn, LoopWatchdog
from bench.harness.options import add_cache_dir, add_out
from bench.harness.served import Served, served
from bench.soak_test.attackers import attack_forever, probe_forever
from bench.soak_test.fault_plan import OutsideFault, SoakPlan, may_fail_to_start, outside_faults
from bench.soak_test.leaks import ServerSample, leaks, sample
from bench.soak_test.report import plot, write_report
from bench.soak_test.request_mix import Visit, deterministic, requests, visits
from bench.soak_test.result import SoakResult
from bench.soak_test.verdict import Verdict, judge
from cli.chaos.http_client import ClientRequest, send
from cli.chaos.transcript import Transcript
from cli.config.errors import CommandFailed
from cli.config.launch import worker_command
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from gateway.fleet.launch import WorkerLaunch
from workers.process.spec import ScriptedSpec, WorkerSpec

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LONGEST_S = 120.0
"""The longest that a visit may take."""
CALM_S = 60.0
"""Within which all workers must be ready again after the last request."""
SETTLE_S = 0.5
"""For closed connections to be forgotten."""
REST_S = 30.0
"""Within which everything must be released, also what a worker compiles in the background."""
AT_ONCE = 16
"""References that are requested at the same time."""
DEADLINES = Deadlines(hello=20.0, hang=1.0, heartbeat=5.0, stop=0.5, term=0.3)
"""Short, so that a hang costs little time."""


def launches(plan: SoakPlan, settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
    """The workers that `baton serve` would start, each incarnation with its fault plan. Runs in the server's process,
    whose event loop is measured from here on."""
    if plan.turns is not None:
        LoopWatchdog(plan.turns).install()
    found = []
    for number in range(plan.workers + plan.standby):
        spec = worker_spec(settings, model, f"w{number}", plan.workers)
        command = functools.partial(_command, plan, spec)
        found.append(WorkerLaunch(spec.name, model.name, command, standby=number >= plan.workers))
    return found


def _command(plan: SoakPlan, spec: WorkerSpec, endpoint: str, incarnation: int) -> Sequence[str]:
    scripted = ScriptedSpec(tokens_per_second=plan.rate)
    planned = msgspec.structs.replace(spec, scripted=scripted, faults=plan.faults(spec.name, incarnation))
    return worker_command(planned)(endpoint, incarnation)


class Soak:
    """One run against a server."""

    def __init__(self, plan: SoakPlan, found: Served) -> None:
        self.result = SoakResult()
        self.pids: list[int] = []
        """The process ids of workers that got a signal."""
        self._plan = plan
        self._found = found
        self._requests = requests(
            random.Random(f"requests {plan.seed}"), plan.requests, longest=plan.longest, tokens=plan.tokens
        )
        self._whole: list[Transcript | None] = []
        self._began = 0.0
        self._ended = asyncio.Event()

    async def references(self) -> None:
        """Send every request once, undisturbed. Raises `CommandFailed` if an answer is not complete."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(request: ClientRequest) -> Transcript:
            async with room:
                transcript = Transcript()
                await send(self._found.server, request, transcript)
            if problem := judge(request, transcript, True, None).problem:
                raise CommandFailed(f"undisturbed, {request} failed: {problem}")
            return transcript

        found = await asyncio.gather(*map(one, self._requests))
        self.result.calm_s = max(transcript.gap() for transcript in found)
        pairs = zip(self._requests, found, strict=True)
        self._whole = [transcript if deterministic(request) else None for request, transcript in pairs]

    async def run(self) -> None:
        """Run all clients and faults until the time is over."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(each) for each in (self._strike(), self._sample(), *self._attacks())]
            async with asyncio.TaskGroup() as clients:
                for number in range(self._plan.clients):
                    clients.create_task(self._client(number))
            for task in others:
                task.cancel()

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _client(self, number: int) -> None:
        rng = random.Random(f"client {self._plan.seed} {number}")
        for turn, visit in enumerate(visits(rng, len(self._requests))):
            await asyncio.sleep(visit.pause_s)
            if self._now() >= self._plan.seconds:
                return
            request, transcript = self._requests[visit.request], Transcript()
            verdict = await self._visit(visit, request, transcript)
            name = (
                f"{self._now():.1f} s, client {number}, visit {turn}, request {visit.request} ({transcript.request_id})"
            )
            self.result.tally.count(name, request, transcript, verdict)

    async def _visit(self, visit: Visit, request: ClientRequest, transcript: Transcript) -> Verdict:
        try:
            async with asyncio.timeout(LONGEST_S):
                stayed = await send(self._found.server, request, transcript, leave=visit.leave)
        except TimeoutError:
            return Verdict("hung", f"no end after {LONGEST_S:g} s: {transcript!r:.300}")
        except (OSError, ValueError) as error:
            return Verdict("lost", f"connection: {error!r}")
        return judge(request, transcript, stayed, self._whole[visit.request])

    async def _strike(self) -> None:
        for fault in outside_faults(self._plan.seed, self._plan.every_s):
            await asyncio.sleep(fault.after_s)
            workers = await asyncio.to_thread(self._found.watcher.workers)
            self._hit(fault, [int(each["pid"]) for each in workers if each["pid"] and _may_get_signal(each)])

    def _hit(self, fault: OutsideFault, running: list[int]) -> None:
        if not running:
            return
        try:
            os.kill(pid := running[fault.worker % len(running)], SIGNALS[fault.kind])
        except ProcessLookupError:
            return  # it has ended since
        self.pids.append(pid)
        self.result.signals.append((round(self._now(), 2), fault.kind))

    def _attacks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The attackers, and a client that probes the server meanwhile."""
        server, tally = self._found.server, self.result.attacks
        for number in range(self._plan.attackers):
            yield attack_forever(server, random.Random(f"attacker {self._plan.seed} {number}"), tally)
        if self._plan.attackers:
            yield probe_forever(server, tally)

    async def _sample(self) -> None:
        while True:
            self.result.samples.append(await asyncio.to_thread(self.look))
            await asyncio.sleep(self._plan.sample_s)

    def leaks(self, idle: ServerSample) -> list[str]:
        """Return what was not released since `idle`, the sample before the first fault."""
        slots = self._plan.workers * self._plan.slots
        return leaks(idle, self.result.samples, self.look(), self._found.metrics(), slots)

    def look(self) -> ServerSample:
        """Sample the server now."""
        return sample(self._now(), self._found.pid, self._found.watcher)


def _may_get_signal(worker: dict[str, Any]) -> bool:
    return worker["state"] == "ready" or may_fail_to_start(worker["incarnation"])


def soak(plan: SoakPlan, out: Path) -> SoakResult:
    """Run a soak. Raises `CommandFailed` if its server or an undisturbed answer fails."""
    with tempfile.TemporaryDirectory(prefix="soak-") as sockets:
        # The server keeps its sockets here, so that a folder which it leaves behind is found.
        environment = {"TMPDIR": sockets, "XDG_RUNTIME_DIR": sockets}
        launcher = functools.partial(launches, plan)
        with served(plan.options(), launcher, DEADLINES, out / "server.log", environment) as found:
            run = Soak(plan, found)
            asyncio.run(run.references())
            time.sleep(SETTLE_S)
            found.watcher.wait_until_ready(CALM_S)
            found.metrics()  # opens the connection that is open at the end, too
            idle = run.look()
            if plan.turns is not None:
                os.kill(found.pid, signal.SIGUSR2)
            asyncio.run(run.run())
            result = run.result
            if plan.turns is not None:
                result.turn = LongestTurn.read(plan.turns)
            try:
                for pid in run.pids:  # the server may not have noticed the last one's end yet
                    found.watcher.wait_until_gone(pid, CALM_S)
                found.watcher.wait_until_ready(CALM_S)
                result.problems += _not_given_back(run, idle)
            except CommandFailed as error:
                result.problems.append(str(error))
            result.lives = {each["name"]: each["incarnation"] for each in found.watcher.workers()}
        result.problems += [f"{name} is left in the folder of the sockets" for name in os.listdir(sockets)]
    result.close(out / "server.log")
    return result


def _not_given_back(run: Soak, idle: ServerSample) -> list[str]:
    """Return what was not released some time after the last request."""
    deadline = time.monotonic() + REST_S
    while True:
        problems = run.leaks(idle)
        if not problems or time.monotonic() >= deadline:
            return problems
        time.sleep(SETTLE_S)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=above_zero, default=20.0, help="of load and faults")
    parser.add_argument("--clients", type=at_least(1), default=64, help="at once")
    parser.add_argument("--seed", type=int, default=None, help="of requests and faults, to run the same again")
    parser.add_argument("--requests", type=at_least(1), default=96, help="that are chosen from")
    parser.add_argument("--every", type=above_zero, default=4.0, help="seconds between faults from outside, on average")
    parser.add_argument("--scripted", action="store_true", help="workers without a model: many more requests")
    parser.add_argument("--backend", choices=("iree", "mlx"), default="iree", help="of workers with a model")
    parser.add_argument("--rate", type=above_zero, default=100.0, help="decode steps a second, of scripted workers")
    parser.add_argument("--workers", type=at_least(1), default=2, help="active workers")
    parser.add_argument("--standby", type=at_least(0), default=1, help="standby workers")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that run at once in one worker")
    parser.add_argument("--attackers", type=at_least(0), default=0, help="at once, beside the clients")
    add_cache_dir(parser)
    smoke = add_out(parser, "soak") | {"minutes": 0.1, "clients": 4, "requests": 8, "every": 0.4, "scripted": True}
    return parsed(parser, words, smoke=smoke | {"rate": 150.0, "workers": 1, "slots": 4, "seed": 11, "attackers": 2})


def main() -> None:
    args = arguments()
    seed = secrets.randbits(32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    plan = SoakPlan(
        seed, 60 * args.minutes, args.clients, args.requests, args.every, args.scripted, args.rate, args.workers,
        args.standby, args.slots, args.cache_dir / "graphs", backend=args.backend, attackers=args.attackers,
        turns=args.out / "turns" if args.attackers else None,
    )  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    result = soak(plan, args.out)
    print(write_report(plan, result, args.out))
    plot(result.samples, result.signals, args.out / "plot.svg")
    if result.problems or result.tally.violations:
        sys.exit(f"violated (seed {seed}): {result.tally.violations} visits, {len(result.problems)} of the server")


if __name__ == "__main__":
    main()
