"""Kills of workers while clients stream, and what the clients notice: nothing but a gap.

    python bench/chaos.py [--streams 8,64] [--workers 1,1+1,2] [--phases admitted,first,middle,last] [--plot FILE]

A set-up is `baton serve` with the built-in model and a number of workers; `1+1` is one and a standby. Each request is
run undisturbed first; then all are run again for each phase, and a worker that has streams gets SIGKILL when

  admitted   they have been sent: prompts are queued or computed
  first      the first token of any has come
  middle     one has --delivered tokens
  last       one has all of its tokens but two

Half of the requests are greedy, half sampled with a seed; every second one is a chat. A line counts the streams that

  failed      ended with an error, or without their end
  duplicated  got more token ids than undisturbed
  altered     differ from the undisturbed in any id, character, finish reason or count

and gives the gap that a client saw: the time from the last chunk of a stream before its kill to the first one after
what was on its way then; p50 and p99 over the streams of the killed worker that had begun. It is compared with the
longest time between two chunks of the undisturbed run. The exit status is 1 if a stream noticed more than a gap.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness.command_line import at_least, command_line, levels, not_negative, parsed
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir
from bench.harness.served import READY_TIMEOUT_S, Served, served
from bench.harness.shapes import make_model
from bench.measurement.plots import can_plot, figure
from cli.chaos.http_client import ClientRequest
from cli.chaos.rounds import ClientImpact, FaultTrigger, compare, percentile, run_round
from cli.chaos.transcript import Transcript
from cli.chaos.workload import streaming_requests

KILL = signal.SIGKILL
PHASES = ("admitted", "first", "middle", "last")


def options(workers: str, slots: int, cache: Path, model: str = "") -> dict[str, Any]:
    """The settings of a server with the number of workers that `workers` states: `2`, or `1+1` for one and a standby.

    `model` is a checkpoint, or empty for the built-in model.
    """
    active, _, standby = workers.partition("+")
    found: dict[str, Any] = {"name": "chaos", "backend": "iree", "context": SMOKE_CONTEXT, "cache_dir": str(cache)}
    found |= {"model": model, "dtype": "bfloat16"} if model else {}
    return found | {"workers": int(active), "standby": int(standby or 0), "max_batch_size": slots}


def phases(text: str) -> list[str]:
    """The `type` of `--phases`."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PHASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PHASES)}")
    return names


def moment(phase: str, delivered: int, tokens: int) -> int:
    """The tokens of the stream with most when a worker is killed in this phase."""
    return {"admitted": 0, "first": 1, "middle": delivered, "last": tokens - 2}[phase]


@dataclass(frozen=True)
class KillRow:
    """The effects of one run on its clients."""

    workers: str
    streams: int
    phase: str
    failed: int
    duplicated: int
    altered: int
    gaps: int
    """Streams that had begun and then had a gap."""
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    undisturbed_ms: float

    @classmethod
    def of(cls, workers: str, phase: str, impact: ClientImpact) -> "KillRow":
        gaps = [round(1e3 * gap, 2) for gap in impact.gaps_s]
        counts = impact.failed, impact.duplicated, impact.altered, len(gaps)
        figures = percentile(gaps, 0.5), percentile(gaps, 0.99), round(1e3 * impact.undisturbed_s, 2)
        return cls(workers, impact.streams, phase, *counts, *figures)

    @property
    def bad(self) -> int:
        return self.failed + self.duplicated + self.altered


def plot(series: dict[str, Transcript], file: Path) -> None:
    """The inter-token times of the stream with the longest gap, through a kill; one panel for each set-up."""
    if not can_plot(file):
        return
    whole, axes = figure(1, len(series))
    for panel, (name, stream) in zip(axes[0], series.items(), strict=True):
        times = [1e3 * (after - before) for before, after in itertools.pairwise(stream.stamps)]
        panel.plot(range(1, len(times) + 1), times, ".-", markersize=3)
        panel.set_title(f"{name} worker(s): gap {max(times):.0f} ms")
        panel.set_xlabel("chunk")
        panel.set_ylabel("ms since the one before")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    whole.savefig(file)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=levels, default="8,64", help="streams at once, separated by commas")
    parser.add_argument("--workers", default="1,1+1,2", help="set-ups, separated by commas; 1+1 is one and a standby")
    parser.add_argument("--phases", type=phases, default=",".join(PHASES), help="when to kill, separated by commas")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that run at once in one worker")
    parser.add_argument("--prompt-words", type=at_least(1), default=32, help="words of a prompt")
    parser.add_argument("--tokens", type=at_least(1), default=160, help="tokens of an answer")
    parser.add_argument("--delivered", type=at_least(1), default=100, help="tokens of a stream when `middle` kills")
    parser.add_argument("--settle", type=not_negative, default=3.0, help="seconds between a restart and the next run")
    add_cache_dir(parser)
    parser.add_argument("--plot", type=Path, help="plot the gaps into this file")
    parser.add_argument("--json", type=Path, help="write the lines into this file as well")
    smoke = {"streams": f"{SMOKE_SLOTS}", "slots": SMOKE_SLOTS, "workers": "1", "phases": "middle", "settle": 0.1}
    return parsed(parser, words, smoke=smoke | {"prompt_words": 4, "tokens": SMOKE_CONTEXT - 64, "delivered": 100})


def kill(
    found: Served, asked: Sequence[ClientRequest], at: int, whole: Sequence[Transcript]
) -> tuple[ClientImpact, list[Transcript]]:
    """Send the requests, kill a worker when a stream has `at` tokens, and wait until all workers are ready again.

    `whole` are the undisturbed answers. Returns also the disturbed ones.
    """
    victim = found.watcher.active()[0]["pid"]  # each has as many streams as another
    streams, killed_at = asyncio.run(run_round(found.server, asked, FaultTrigger(at, partial(os.kill, victim, KILL))))
    found.watcher.wait_until_gone(victim, READY_TIMEOUT_S)
    found.watcher.wait_until_ready(READY_TIMEOUT_S)
    return compare(asked, streams, killed_at, whole), streams


def run(args: argparse.Namespace, model: str) -> tuple[list[KillRow], dict[str, Transcript]]:
    """Kill workers in every set-up and phase, and print a line for each. Returns also the streams to plot."""
    lines: list[KillRow] = []
    pictures: dict[str, Transcript] = {}
    print("workers | streams | killed at | failed | duplicated | altered | gaps | p50 ms | p99 ms | undisturbed ms")
    for name in args.workers.split(","):
        with served(options(name, args.slots, args.cache_dir / "graphs", model)) as found:
            for count in args.streams:
                time.sleep(args.settle)
                asked = streaming_requests("chaos", count, args.tokens, words=args.prompt_words, chat=True)
                whole, _ = asyncio.run(run_round(found.server, asked))
                for phase in args.phases:
                    # A worker that has just become ready may still load graphs beside its first requests.
                    time.sleep(args.settle)
                    impact, streams = kill(found, asked, moment(phase, args.delivered, args.tokens), whole)
                    lines.append(KillRow.of(name, phase, impact))
                    print(" | ".join(map(str, dataclasses.astuple(lines[-1]))), flush=True)
                    if impact.problem:
                        print(f"  {impact.problem}", flush=True)
                    if phase == "middle" and name not in pictures:
                        pictures[name] = max(streams, key=Transcript.gap)
    return lines, pictures


def main() -> None:
    args = arguments()
    lines, pictures = run(args, str(make_model(args.cache_dir, "tiny")) if args.smoke else "")
    if args.plot and pictures:
        plot(pictures, args.plot)
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    sys.exit(1 if any(line.bad for line in lines) else 0)


if __name__ == "__main__":
    main()
