"""Ways to choose a worker beside each other: prompt tokens computed, waits and balance, over HTTP.

    python bench/gateway_load/prefix_routing.py [--model scripted|built-in] [--workers 4] [--slots 8] [--seconds 40]
        [--routing prefix least-loaded round-robin] [--loads chats shared random] [--chats 20] [--turns 12] [--rate 6]
        [--prefix-cache-bytes N]

Each line is a server of its own, `baton serve` with --workers worker processes, under the same requests. The load
`chats` has --chats clients that talk in turns: a system prompt that all share, --turns turns at most and half as many
at least, and a pause between an answer and the next question. `shared` has requests with one of eight system prompts,
and `random` those that have nothing in common, both at --rate requests a second. Scripted workers compute
--prefill-rate prompt tokens (bytes) a second and make --step-rate steps; they sleep meanwhile, so that more of them
than cores can be measured. --model built-in computes for real. With --prefix-cache-bytes its workers share a prefix
tier of so many bytes.

Shown are the requests, their prompt tokens, the share of these that was computed, and the share that no request before
had, which any routing computes at least; the median and the 99th percentile of the time to the first token and of the
wait for a slot before the prefill, the median time of an answer, and how much more sequences than the mean the busiest
worker had. Then each figure of `least-loaded` is compared. A failed request ends the benchmark.
"""

import argparse
import asyncio
import functools
import random
import signal
import sys
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from msgspec.structs import replace

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.served import Served, served
from bench.harness.sse_client import StreamedAnswer, request
from bench.harness.words import WORDS
from cli.chaos.rounds import percentile
from cli.client.administration import Administration
from cli.client.load_sample import LoadChange, LoadSample, take_sample
from cli.config.launch import worker_command, worker_launches, worker_specs
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from gateway.fleet.launch import WorkerLaunch
from workers.process.spec import ScriptedSpec

NAME = "bench"
CONTEXT = 16_384
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 300, 50, 100
CHAT_SYSTEM_WORDS = 100
PAUSE_S = 1.5
"""Mean time between an answer and the next question."""
SYSTEMS = 8
"""System prompts of the load `shared`."""
QUEUE_WAIT = "baton_queue_wait_seconds"


def paced_launches(scripted: ScriptedSpec, settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
    """Scripted workers that take time. Runs in the server's process."""
    specs = [replace(spec, scripted=scripted) for spec in worker_specs(settings, model)]
    return [WorkerLaunch(spec.name, model.name, worker_command(spec)) for spec in specs]


@dataclass
class ChatAnswer(StreamedAnswer):
    """An answer with its text."""

    text: str = ""
    new: float = 1.0
    """Share of the characters of its prompt that no request before had."""
    prompt_tokens: int = 0

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        for choice in event.get("choices") or []:
            self.text += (choice.get("delta") or {}).get("content") or ""
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.stamps[0] - self.began

    @property
    def whole_s(self) -> float:
        """Seconds to the last token."""
        return self.stamps[-1] - self.began


@dataclass
class ChatClients:
    """Sends the requests of one run, which are the same in each."""

    url: urllib.parse.SplitResult
    seed: int
    turns: int
    """The most turns of a chat, which has half as many at least."""
    answers: list[ChatAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._known: set[tuple[str, ...]] = set()
        """The messages of all requests, with and without the answer, and the first ones of each."""

    def words(self, count: int, chosen: random.Random | None = None) -> str:
        return " ".join((chosen or self._random).choices(WORDS, k=count))

    async def ask(self, messages: Sequence[dict[str, str]]) -> str:
        """Send a chat. Raises `BadAnswerError`."""
        body = {
            "model": NAME,
            "messages": list(messages),
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        texts = [each["content"] for each in messages]
        answer = ChatAnswer(time.perf_counter(), new=self._new_share(texts))
        await request(self.url, "/v1/chat/completions", "", body, answer)
        self._known.add((*texts, answer.text))
        self.answers.append(answer)
        return answer.text

    def _new_share(self, texts: Sequence[str]) -> float:
        """Return the share of a prompt that neither earlier prompts nor their answers had, and remember it."""
        begin = len(texts)
        while begin and tuple(texts[:begin]) not in self._known:
            begin -= 1
        self._known.update(tuple(texts[:count]) for count in range(begin + 1, len(texts) + 1))
        return sum(map(len, texts[begin:])) / sum(map(len, texts))

    async def talk(self, number: int, until: float) -> None:
        """Talk in turns, in one chat after the other."""
        chosen = random.Random(f"{self.seed} {number}")
        await asyncio.sleep(chosen.uniform(0, PAUSE_S))
        while time.perf_counter() < until:
            messages = [{"role": "system", "content": self.words(CHAT_SYSTEM_WORDS, random.Random(self.seed))}]
            for _ in range(chosen.randint((self.turns + 1) // 2, self.turns)):
                messages.append({"role": "user", "content": self.words(QUESTION_WORDS, chosen)})
                messages.append({"role": "assistant", "content": await self.ask(messages)})
                await asyncio.sleep(chosen.expovariate(1 / PAUSE_S))
                if time.perf_counter() >= until:
                    return

    async def chats(self, count: int, seconds: float) -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(self.talk(number, until) for number in range(count)))

    async def arrive(self, rate: float, seconds: float, systems: int) -> None:
        """Send independent requests, with one of so many system prompts if there are any."""
        until = time.perf_counter() + seconds
        shared = [self.words(SYSTEM_WORDS) for _ in range(systems)]
        async with asyncio.TaskGroup() as tasks:
            while time.perf_counter() < until:
                system = self._random.choice(shared) if shared else self.words(SYSTEM_WORDS)
                question = {"role": "user", "content": self.words(QUESTION_WORDS)}
                tasks.create_task(self.ask([{"role": "system", "content": system}, question]))
                await asyncio.sleep(self._random.expovariate(rate))


@dataclass(frozen=True)
class RoutingFigures:
    """The figures of one run."""

    requests: int
    prompt_tokens: float
    computed: float
    new: float
    """Prompt tokens that no request before had."""
    first_s: tuple[float, float]
    wait_s: tuple[float, float]
    whole_s: float
    imbalance: float
    """Sequences of the busiest worker above the mean, as a share of it."""

    @property
    def share(self) -> float:
        return self.computed / self.prompt_tokens

    def row(self) -> str:
        times = "".join(f"{1000 * value:9.0f}" for value in (*self.first_s, *self.wait_s, self.whole_s))
        shares = f"{100 * self.share:8.1f}%{100 * self.new / self.prompt_tokens:8.1f}%"
        return f"{self.requests:9}{self.prompt_tokens:10.0f}{shares}{times}{100 * self.imbalance:9.0f}%"


def measured(quantile: float | None) -> float:
    """Raises `ValueError` for the quantile of no values."""
    if quantile is None:
        raise ValueError("no request was sent: choose longer --seconds")
    return quantile


def figures(found: Served, answers: Sequence[ChatAnswer]) -> RoutingFigures:
    """Read the server's metrics, which are of this run alone. Raises `ValueError` without an answer."""
    now = take_sample(Administration(found.client))
    waits = LoadChange(LoadSample(now.at, []), now)
    firsts = [each.first_s for each in answers]
    started = now.values["baton_batch_sequences_started"].values()
    return RoutingFigures(
        len(answers),
        sum(now.values["baton_prompt_tokens_sum"].values()),
        sum(now.values["baton_batch_prefill_tokens_total"].values()),
        sum(each.new * each.prompt_tokens for each in answers),
        (measured(percentile(firsts, 0.5)), measured(percentile(firsts, 0.99))),
        (measured(waits.quantile(0.5, QUEUE_WAIT)), measured(waits.quantile(0.99, QUEUE_WAIT))),
        measured(percentile([each.whole_s for each in answers], 0.5)),
        max(started) * len(started) / sum(started) - 1,
    )


def measure(args: argparse.Namespace, load: str, routing: str) -> RoutingFigures:
    options: dict[str, Any] = {
        "name": NAME,
        "workers": args.workers,
        "max_batch_size": args.slots,
        "routing": routing,
        "prefix_cache_bytes": args.prefix_cache_bytes,
        "log_level": "warning",
    }
    launcher = worker_launches
    if args.model == "scripted":
        options |= {"backend": "scripted", "context": CONTEXT}
        scripted = ScriptedSpec(tokens_per_second=args.step_rate, prefill_tokens_per_second=args.prefill_rate)
        launcher = functools.partial(paced_launches, scripted)
    with served(options, launcher) as found:
        client = ChatClients(
            urllib.parse.urlsplit(f"http://{found.server.host}:{found.server.port}"), args.seed, args.turns
        )
        if load == "chats":
            asyncio.run(client.chats(args.chats, args.seconds))
        else:
            asyncio.run(client.arrive(args.rate, args.seconds, SYSTEMS if load == "shared" else 0))
        time.sleep(1.5)  # a heartbeat brings the last counts
        return figures(found, client.answers)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", choices=["scripted", "built-in"], default="scripted", help="what workers compute")
    parser.add_argument("--workers", type=at_least(2), default=4, help="worker processes")
    parser.add_argument("--slots", type=at_least(1), default=8, help="of each worker")
    parser.add_argument("--seconds", type=above_zero, default=40.0, help="time of each load")
    ways = ["prefix", "least-loaded", "round-robin"]
    parser.add_argument("--routing", nargs="+", choices=ways, default=ways, help="ways to choose a worker")
    loads = ["chats", "shared", "random"]
    parser.add_argument("--loads", nargs="+", choices=loads, default=loads, help="what is sent")
    parser.add_argument("--chats", type=at_least(1), default=20, help="clients that talk in turns")
    parser.add_argument("--turns", type=at_least(1), default=12, help="most turns of a chat")
    parser.add_argument("--rate", type=above_zero, default=6.0, help="requests a second of the other loads")
    parser.add_argument("--prefill-rate", type=above_zero, default=8000.0, help="of a scripted worker, tokens a second")
    parser.add_argument("--step-rate", type=above_zero, default=100.0, help="of a scripted worker, steps a second")
    parser.add_argument("--prefix-cache-bytes", type=at_least(0), default=0, help="of a prefix tier (built-in model)")
    parser.add_argument("--seed", type=int, default=1, help="of the words and times")
    smoke = {"workers": 2, "slots": 2, "seconds": 1.0, "chats": 2, "rate": 3.0, "prefill_rate": 50_000.0}
    return parsed(parser, words, smoke=smoke | {"loads": loads[:2], "routing": ways[:2], "step_rate": 1000.0})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends as well
    columns = {
        "requests": 9,
        "prompt": 10,
        "computed": 9,
        "new": 9,
        "first": 9,
        "p99 ms": 9,
        "wait": 9,
        "p99 ms ": 9,
        "answer": 9,
        "uneven": 10,
    }
    print(f"{'load':8}{'routing':14}" + "".join(f"{name:>{width}}" for name, width in columns.items()), flush=True)
    for load in args.loads:
        found = {}
        for routing in args.routing:
            found[routing] = figure = measure(args, load, routing)
            print(f"{load:8}{routing:14}{figure.row()}", flush=True)
        if base := found.get("least-loaded"):
            for routing, figure in found.items():
                if figure is not base:
                    ratio = figure.share / base.share
                    print(f"{load}: {routing} computes {ratio:.2f}x of least-loaded's share", flush=True)


if __name__ == "__main__":
    main()
