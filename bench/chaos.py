"""Kills workers with SIGKILL while clients stream, and counts what the clients notice: nothing but a gap.

    python bench/chaos.py [--streams 8,64] [--workers 1,1+1,2] [--phases admitted,first,middle,last] [--plot FILE]

A set-up is `baton serve` with the built-in model and so many workers, `1+1` being one and a standby. Each request is
run undisturbed first; then all are run again for each phase, and a worker that has streams is killed when

  admitted   they have been sent: prompts are queued or computed
  first      the first token of any has come
  middle     one has --delivered tokens
  last       one has all of its tokens but two

Half of the requests are greedy, half are drawn with a seed; every second one is a chat. A line counts the streams that

  failed      ended with an error, or without their end
  duplicated  got more token ids than undisturbed
  altered     differ from the undisturbed in any id, character, finish reason or count

and gives the gap that a client saw: the time from the last chunk of a stream before its kill to the first one after
what was on its way then; p50 and p99 over the streams of the killed worker that had begun. Beside it stands the longest
time between two chunks of the undisturbed run.
"""

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.command_line import at_least, command_line, levels, not_negative
from bench.plots import drawable, figure
from bench.served import READY_TIMEOUT_S, served
from bench.shapes import default_cache
from cli.chaos.rounds import ClientImpact, FaultTrigger, compare, percentile, run_round
from cli.chaos.transcript import Transcript
from cli.chaos.workload import streaming_requests

KILL = signal.SIGKILL
PHASES = ("admitted", "first", "middle", "last")


def options(workers: str, slots: int, cache: Path) -> dict[str, Any]:
    """The settings of a server with the workers that `workers` says: `2`, or `1+1` for one and a standby."""
    active, _, standby = workers.partition("+")
    found: dict[str, Any] = {"name": "chaos", "backend": "iree", "context": 1024, "cache_dir": str(cache)}
    return found | {"workers": int(active), "standby": int(standby or 0), "max_batch_size": slots}


def moment(phase: str, delivered: int, tokens: int) -> int:
    """The tokens that some stream has when a worker is killed in this phase."""
    return {"admitted": 0, "first": 1, "middle": delivered, "last": tokens - 2}[phase]


@dataclass(frozen=True)
class Line:
    """What the clients of one run noticed."""

    workers: str
    streams: int
    phase: str
    failed: int
    duplicated: int
    altered: int
    cut: int
    """Streams that had begun and then saw a gap."""
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    undisturbed_ms: float

    @classmethod
    def of(cls, workers: str, phase: str, impact: ClientImpact) -> "Line":
        gaps = [round(1e3 * gap, 2) for gap in impact.gaps_s]
        counts = impact.failed, impact.duplicated, impact.altered, len(gaps)
        figures = percentile(gaps, 0.5), percentile(gaps, 0.99), round(1e3 * impact.undisturbed_s, 2)
        return cls(workers, impact.streams, phase, *counts, *figures)

    @property
    def bad(self) -> int:
        return self.failed + self.duplicated + self.altered


def plot(series: dict[str, Transcript], file: Path) -> None:
    """The inter-token times of the stream with the longest gap, through a kill; one panel for each set-up."""
    if not drawable(file):
        return
    drawn, axes = figure(1, len(series))
    for panel, (name, stream) in zip(axes[0], series.items(), strict=True):
        times = [1e3 * (after - before) for before, after in itertools.pairwise(stream.stamps)]
        panel.plot(range(1, len(times) + 1), times, ".-", markersize=3)
        panel.set_title(f"{name} worker(s): gap {max(times):.0f} ms")
        panel.set_xlabel("chunk")
        panel.set_ylabel("ms since the one before")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    drawn.savefig(file)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=levels, default="8,64", help="streams at once, separated by commas")
    parser.add_argument("--workers", default="1,1+1,2", help="set-ups, separated by commas; 1+1 is one and a standby")
    parser.add_argument("--phases", default=",".join(PHASES), help="when to kill, separated by commas")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that run at once in one worker")
    parser.add_argument("--prompt-words", type=at_least(1), default=32, help="words of a prompt")
    parser.add_argument("--tokens", type=at_least(1), default=160, help="tokens of an answer")
    parser.add_argument("--delivered", type=at_least(1), default=100, help="tokens after which `last` kills")
    parser.add_argument("--settle", type=not_negative, default=3.0, help="seconds between a restart and the next run")
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="keeps compiled graphs")
    parser.add_argument("--plot", type=Path, help="draw the gaps into this file")
    parser.add_argument("--json", type=Path, help="where the lines go as well")
    args = parser.parse_args()
    lines: list[Line] = []
    pictures: dict[str, Transcript] = {}
    print("workers | streams | killed at | failed | duplicated | altered | gaps | p50 ms | p99 ms | undisturbed ms")
    for name in args.workers.split(","):
        with served(options(name, args.slots, args.cache_dir)) as found:
            for count in args.streams:
                time.sleep(args.settle)
                asked = streaming_requests("chaos", count, args.tokens, words=args.prompt_words, chat=True)
                whole, _ = asyncio.run(run_round(found.server, asked))
                for phase in args.phases.split(","):
                    # A worker that has just become ready may still load graphs beside its first requests.
                    time.sleep(args.settle)
                    victim = found.watcher.active()[0]["pid"]  # each has as many streams as another
                    trigger = FaultTrigger(moment(phase, args.delivered, args.tokens), partial(os.kill, victim, KILL))
                    streams, killed_at = asyncio.run(run_round(found.server, asked, trigger))
                    impact = compare(asked, streams, killed_at, whole)
                    lines.append(Line.of(name, phase, impact))
                    print(" | ".join(map(str, dataclasses.astuple(lines[-1]))), flush=True)
                    if impact.problem:
                        print(f"  {impact.problem}", flush=True)
                    if phase == "middle" and name not in pictures:
                        pictures[name] = max(streams, key=Transcript.gap)
                    found.watcher.wait_until_gone(victim, READY_TIMEOUT_S)
                    found.watcher.wait_until_ready(READY_TIMEOUT_S)
    if args.plot and pictures:
        plot(pictures, args.plot)
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    sys.exit(1 if any(line.bad for line in lines) else 0)


if __name__ == "__main__":
    main()
