"""Growth of the engine: 10,000 requests with random cancels, and what the process holds meanwhile.

    python bench/memory.py [--requests 10000] [--seed N] [--slots 8] [--device local-task]

A tiny model; random prompts (some share a prefix), lengths, sampling, penalties and log-probabilities; a third of the
requests is cancelled at a random moment: queued, in the middle of its prompt, or decoding. After every --every requests
the engine is drained and sampled: resident memory, bytes allocated on the device, slots in use, file descriptors,
threads, Python's objects.

The first quarter is warm-up. After it slots, descriptors, threads and device bytes may not grow, objects by at most
0.05 and resident memory by at most --tolerance bytes a request: these bounds are what the figures are compared with.
The exit status is 1 if something grew. Tables and a plot go to --out; --seed with the seed that is printed repeats a
run. With --smoke only slots and KV that are held count: a run of seconds is all warm-up.
"""

import argparse
import gc
import json
import random
import secrets
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, not_negative, parsed
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_out
from bench.harness.settled import load_settled
from bench.harness.shapes import make_model
from bench.measurement.markdown import markdown
from bench.measurement.plots import can_plot, figure, plot_against
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.process.spec import WorkerSpec

MAX_LIVE = 64
"""Sequences at once: more than slots, so that some wait."""
CANCELLED = 0.33
"""Share of the requests."""
GRAPH = ".vmfb"
"""Suffix of the file of a compiled graph."""
SHARED = 0.25
"""Share of the prompts that have a prefix in common."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """Memory and other resources of the process while the engine is idle."""

    requests: int
    rss: int
    device: int
    """Bytes that the device's allocator has not got back."""
    slots: int
    kv_tokens: int
    descriptors: int
    """Without those of compiled graphs: each is opened when it is first needed, and stays open."""
    threads: int
    objects: int


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity over the run. `problem` says why it grew too much, and is empty if it did not."""

    name: str
    first: float
    last: float
    a_request: float
    problem: str


class LostRequestError(Exception):
    """Raised when the engine loses or fails a request."""


class RandomRequests:
    """Random requests to one engine. `allocated` returns the device's live bytes."""

    def __init__(self, engine: BatchEngine, allocated: Callable[[], int], seed: int) -> None:
        self._engine, self._allocated = engine, allocated
        self._random = random.Random(seed)
        self._vocab = engine.capabilities.vocab_size
        self._live: dict[int, int | None] = {}
        """The steps after which each stream is cancelled; None for those that run to their end."""
        self._submitted = 0

    def run(self, requests: int, every: int) -> Iterator[EngineSample]:
        """Yield a sample after every `every` requests. Raises `LostRequestError`."""
        while self._submitted < requests:
            goal = min(requests, self._submitted + every)
            while self._submitted < goal or self._live:
                while self._submitted < goal and len(self._live) < MAX_LIVE and self._random.random() < 0.7:
                    self._submit()
                self._step()
            yield self._sample()

    def _submit(self) -> None:
        rng = self._random
        self._submitted += 1
        prompt = [rng.randrange(self._vocab) for _ in range(rng.randint(1, 160))]
        if rng.random() < SHARED:
            prompt[: len(prompt) // 2] = range(len(prompt) // 2)
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.0, 0.8, 1.3]),
            top_k=rng.choice([0, 0, 20]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(1 << 32),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            logprobs=rng.choice([None, None, 0, 5]),
        )
        self._engine.submit(EngineRequest(self._submitted, tuple(prompt), sampling, rng.randint(1, 24)))
        self._live[self._submitted] = rng.randint(0, 20) if rng.random() < CANCELLED else None

    def _step(self) -> None:
        for stream, left in list(self._live.items()):
            if left == 0:
                end = self._engine.cancel(stream)
                if end is None or end.reason != "cancelled":
                    raise LostRequestError(f"request {stream} was cancelled and ended as {end}")
                del self._live[stream]
            elif left is not None:
                self._live[stream] = left - 1
        result = self._engine.step()
        if result.failures:
            raise LostRequestError(f"request {result.failures[0].stream} failed: {result.failures[0].text}")
        for end in result.ends:
            del self._live[end.stream]

    def _sample(self) -> EngineSample:
        if not self._engine.idle:
            raise LostRequestError("every request ended, and the engine is not idle")
        gc.collect()
        process, gauges = psutil.Process(), self._engine.gauges()
        return EngineSample(
            requests=self._submitted,
            rss=process.memory_info().rss,
            device=self._allocated(),
            slots=gauges.slots_active,
            kv_tokens=gauges.kv_tokens,
            descriptors=process.num_fds() - sum(each.path.endswith(GRAPH) for each in process.open_files()),
            threads=process.num_threads(),
            objects=len(gc.get_objects()),
        )


ALLOWED = {"device": 0.0, "objects": 0.05, "slots": 0.0, "kv_tokens": 0.0, "descriptors": 0.0, "threads": 0.0}
"""Allowed growth a request of what is counted exactly. Python keeps a few objects now and then, not one a request."""


MIN_SAMPLES = 8
USUAL = {"iree": "local-task"}
"""The default device of a model of a usual size. One as small as this would get `local-sync`, where results stay
allocated until their graph is called again: device bytes grow until every graph has been called, in some 5,000
requests."""
ALWAYS = ("slots", "kv_tokens")
"""Judged also with `--smoke`."""


def judge(samples: Sequence[EngineSample], tolerance: float) -> list[Growth]:
    """The growth of every quantity after the first quarter of the samples. Raises ValueError for fewer than eight.

    It is the difference of the medians of the last and the second quarter, over the requests between their middles: at
    the moment of a single sample an allocator may hold memory that is free. `tolerance` is in bytes of resident memory
    a request.
    """
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few to tell growth, at least {MIN_SAMPLES} are needed")
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    requests = statistics.median(s.requests for s in late) - statistics.median(s.requests for s in early)
    out = []
    for name, limit in {"rss": tolerance, **ALLOWED}.items():
        first, last = (float(statistics.median(getattr(s, name) for s in part)) for part in (early, late))
        rate = (last - first) / requests
        problem = f"grows by {rate:.3g} a request, {limit:g} is allowed" if rate > limit else ""
        held = max(getattr(s, name) for s in samples)
        if name in ALWAYS and held:
            problem = f"{held} are held while the engine is idle"
        out.append(Growth(name, first, last, rate, problem))
    return out


def report(samples: Sequence[EngineSample], growths: Sequence[Growth], out: Path) -> str:
    """The tables as text; also written to `out`, with the figures and a plot."""
    names = list(asdict(samples[0]))
    rows = [[f"{getattr(sample, name):,}" for name in names] for sample in samples]
    judged = [[g.name, f"{g.first:,.0f}", f"{g.last:,.0f}", f"{g.a_request:.3g}", g.problem or "ok"] for g in growths]
    header = ("", "second quarter", "last quarter", "a request", "")
    text = f"{markdown(names, rows)}\n\n{markdown(header, judged)}"
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text + "\n")
    (out / "figures.json").write_text(json.dumps([asdict(sample) for sample in samples]))
    plot_memory(samples, out / "plot.svg")
    return text


def plot_memory(samples: Sequence[EngineSample], file: Path) -> None:
    """Resident memory, device bytes, and what is counted in pieces, against requests."""
    if not can_plot(file):
        return
    whole, axes = figure(1, 3)
    requests = [sample.requests for sample in samples]
    panels = (
        ("resident memory, MB", {"rss": 1e-6}),
        ("on the device, MB", {"device": 1e-6}),
        ("slots, descriptors, threads", {"slots": 1.0, "descriptors": 1.0, "threads": 1.0}),
    )
    for panel, (title, quantities) in zip(axes[0], panels, strict=True):
        curves = {name: [by * getattr(each, name) for each in samples] for name, by in quantities.items()}
        plot_against(panel, title, ("requests", requests), curves)
    whole.savefig(file)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=at_least(1), default=10_000, help="in all")
    parser.add_argument("--every", type=at_least(1), default=250, help="requests between two samples")
    parser.add_argument("--seed", type=int, default=None, help="of lengths and cancels, to run the same again")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that run at once")
    parser.add_argument("--context", type=at_least(256), default=256, help="tokens of a slot")
    parser.add_argument("--backend", choices=["iree", "mlx", "scripted"], default="iree", help="what computes")
    parser.add_argument("--device", default="", help="of the backend; empty is its default for models of a usual size")
    parser.add_argument("--tolerance", type=not_negative, default=256.0, help="bytes of resident memory a request")
    add_cache_dir(parser)
    smoke = add_out(parser, "memory") | {"slots": SMOKE_SLOTS, "context": SMOKE_CONTEXT, "device": "local-sync"}
    args = parsed(parser, words, smoke=smoke | {"requests": 96, "every": 12})
    if args.requests < MIN_SAMPLES * args.every:
        parser.error(f"--requests {args.requests}: to judge growth, give {MIN_SAMPLES} times --every {args.every}")
    return args


def samples_of(args: argparse.Namespace, seed: int) -> Iterator[EngineSample]:
    """Load the model, send it requests, and yield the samples. Raises `LostRequestError`."""
    path = make_model(args.cache_dir, "tiny")
    spec = WorkerSpec(
        "memory", "memory", str(path), args.backend, args.device or USUAL.get(args.backend, ""), "bfloat16",
        max_batch_size=args.slots, context=args.context, cache_dir=str(args.cache_dir / "graphs"),
    )  # fmt: skip
    runner = load_settled(spec)
    engine = BatchEngine(runner, max_queue=MAX_LIVE, step_tokens=spec.step_tokens or None)
    yield from RandomRequests(engine, lambda: runner.memory().get("allocated", 0), seed).run(args.requests, args.every)
    engine.close()


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    seed = secrets.randbits(32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    samples = []
    for sample in samples_of(args, seed):
        samples.append(sample)
        print(f"{sample.requests:6d} requests, {sample.rss / 1e6:8.2f} MB, {sample.device:,} on the device", flush=True)
    growths = judge(samples, args.tolerance)
    print(f"\n{report(samples, growths, args.out)}\n\nwritten to {args.out}")
    problems = [growth.name for growth in growths if growth.problem and (growth.name in ALWAYS or not args.smoke)]
    if problems:
        sys.exit(f"grew (seed {seed}): {', '.join(problems)}")


if __name__ == "__main__":
    main()
