"""Does the engine grow? 10,000 requests with random cancels through it, and what the process holds meanwhile.

    python bench/memory.py [--requests 10000] [--seed N] [--slots 8] [--device local-task]

A tiny model; random prompts (some share a beginning), lengths, sampling, penalties and reports of log-probabilities; a
third of the requests is cancelled at a random moment: queued, in the middle of its prompt, or decoding. After every
--every requests the engine runs dry and is looked at: resident memory, bytes allocated on the device, slots in use,
file descriptors, threads, Python's objects.

Slots, descriptors and threads must be at the end what they were after the first quarter, which is for warming up;
device bytes and objects may not grow from quarter to quarter, resident memory by at most --tolerance bytes a request.
Exits with 1 when something grew. A table and a plot go to --out; the seed that is printed makes the same run again.
"""

import argparse
import gc
import json
import random
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.command_line import at_least, command_line, not_negative
from bench.plots import plot_memory
from bench.rounds import markdown
from bench.usage import psutil
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.process.backends import load_runner
from workers.process.spec import WorkerSpec

CONTEXT = 256
MAX_LIVE = 64
"""Sequences at once: more than slots, so that some wait."""
CANCELLED = 0.33
GRAPH = ".vmfb"
"""How the file of a compiled graph is named."""
SHARED = 0.25
"""Of the prompts begin alike."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process holds while the engine is dry."""

    requests: int
    rss: int
    device: int
    """Bytes that the device's allocator has handed out and not got back."""
    slots: int
    kv_tokens: int
    descriptors: int
    """But for those of compiled graphs, each of which is opened when it is first needed, and stays."""
    threads: int
    objects: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One quantity over the run, and why it is too much; empty when it is not."""

    name: str
    first: float
    last: float
    a_request: float
    problem: str


class SoakError(Exception):
    """The engine lost a request or failed one; the text says which."""


class Soak:
    """Random requests through one engine. `allocated` gives the device's live bytes."""

    def __init__(self, engine: BatchEngine, allocated: Callable[[], int], seed: int) -> None:
        self._engine, self._allocated = engine, allocated
        self._random = random.Random(seed)
        self._vocab = engine.capabilities.vocab_size
        self._live: dict[int, int | None] = {}
        """Stream -> the steps after which it is cancelled, None for those that run to their end."""
        self._submitted = self._cancelled = 0

    def run(self, requests: int, every: int) -> Iterator[Sample]:
        """A sample after every `every` requests. Raises `SoakError`."""
        while self._submitted < requests:
            goal = min(requests, self._submitted + every)
            while self._submitted < goal or self._live:
                while self._submitted < goal and len(self._live) < MAX_LIVE and self._random.random() < 0.7:
                    self._submit()
                self._step()
            yield self._sample()

    def _submit(self) -> None:
        draw = self._random
        self._submitted += 1
        prompt = [draw.randrange(self._vocab) for _ in range(draw.randint(1, 160))]
        if draw.random() < SHARED:
            prompt[: len(prompt) // 2] = range(len(prompt) // 2)
        sampling = Sampling(
            temperature=draw.choice([0.0, 0.0, 0.8, 1.3]),
            top_k=draw.choice([0, 0, 20]),
            top_p=draw.choice([1.0, 0.9]),
            seed=draw.randrange(1 << 32),
            frequency_penalty=draw.choice([0.0, 0.0, 0.5]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
            logprobs=draw.choice([None, None, 0, 5]),
        )
        self._engine.submit(EngineRequest(self._submitted, tuple(prompt), sampling, draw.randint(1, 24)))
        self._live[self._submitted] = draw.randint(0, 20) if draw.random() < CANCELLED else None

    def _step(self) -> None:
        for stream, left in list(self._live.items()):
            if left == 0:
                end = self._engine.cancel(stream)
                if end is None or end.reason != "cancelled":
                    raise SoakError(f"request {stream} was cancelled and ended as {end}")
                del self._live[stream]
            elif left is not None:
                self._live[stream] = left - 1
        result = self._engine.step()
        if result.failures:
            raise SoakError(f"request {result.failures[0].stream} failed: {result.failures[0].text}")
        for end in result.ends:
            del self._live[end.stream]

    def _sample(self) -> Sample:
        if not self._engine.idle:
            raise SoakError("every request ended, and the engine is not idle")
        gc.collect()
        process, gauges = psutil.Process(), self._engine.gauges()
        return Sample(
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
"""Growth a request of what is counted exactly. Python keeps a few objects now and then, not one a request."""


MIN_SAMPLES = 8
USUAL = {"iree": "local-task"}
"""A model as small as this one would get `local-sync`, where results stay allocated until their graph is called again:
device bytes grow there until every graph has been called, which takes some 5,000 requests."""


def judge(samples: Sequence[Sample], tolerance: float) -> list[Verdict]:
    """What grew after the first quarter of the samples. Raises ValueError for fewer than eight.

    Growth is the difference of the medians of the last and the second quarter, over the requests between their middles:
    a single sample may fall into a moment when an allocator has just not given back what is free. `tolerance` is in
    bytes of resident memory a request.
    """
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few to tell growth, at least {MIN_SAMPLES} are needed")
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    span = statistics.median(s.requests for s in late) - statistics.median(s.requests for s in early)
    out = []
    for name, limit in {"rss": tolerance, **ALLOWED}.items():
        first, last = (float(statistics.median(getattr(s, name) for s in part)) for part in (early, late))
        rate = (last - first) / span
        problem = f"grows by {rate:.3g} a request, {limit:g} is allowed" if rate > limit else ""
        held = max(getattr(s, name) for s in samples)
        if name in ("slots", "kv_tokens") and held:
            problem = f"{held} are held while nothing runs"
        out.append(Verdict(name, first, last, rate, problem))
    return out


def report(samples: Sequence[Sample], verdicts: Sequence[Verdict], out: Path) -> str:
    """The tables as text; also written to `out`, with the figures and a plot."""
    names = list(asdict(samples[0]))
    rows = [[f"{getattr(sample, name):,}" for name in names] for sample in samples]
    judged = [[v.name, f"{v.first:,.0f}", f"{v.last:,.0f}", f"{v.a_request:.3g}", v.problem or "ok"] for v in verdicts]
    header = ("", "second quarter", "last quarter", "a request", "")
    text = f"{markdown(names, rows)}\n\n{markdown(header, judged)}"
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text + "\n")
    (out / "figures.json").write_text(json.dumps([asdict(sample) for sample in samples]))
    plot_memory(samples, out / "plot.svg")
    return text


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=at_least(1), default=10_000, help="in all")
    parser.add_argument("--every", type=at_least(1), default=250, help="requests between two looks at the memory")
    parser.add_argument("--seed", type=int, default=None, help="of lengths and cancels, to run the same again")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that run at once")
    parser.add_argument("--backend", choices=["iree", "mlx", "scripted"], default="iree", help="what computes")
    parser.add_argument(
        "--device", default="", help="of the backend; empty is what it takes for models of a usual size"
    )
    parser.add_argument("--tolerance", type=not_negative, default=256.0, help="bytes of resident memory a request")
    parser.add_argument("--cache-dir", type=Path, help="keep compiled graphs here")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results/memory"), help="the folder of the figures and the plot"
    )
    args = parser.parse_args()
    if args.requests < MIN_SAMPLES * args.every:
        parser.error(f"--requests {args.requests}: to tell growth it takes {MIN_SAMPLES} times --every {args.every}")
    return args


def main() -> None:
    args = arguments()
    seed = secrets.randbits(32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder) / "model", hidden=64, heads=2, kv_heads=1, head_dim=32)
        cache = str(args.cache_dir or Path(folder) / "cache")
        spec = WorkerSpec(
            "soak", "soak", str(path), args.backend, args.device or USUAL.get(args.backend, ""),
            max_batch_size=args.slots, context=CONTEXT, cache_dir=cache,
        )  # fmt: skip
        runner = load_runner(spec, lambda phase, done, total: None)
        runner.settle()
        engine = BatchEngine(runner, max_queue=MAX_LIVE, step_tokens=spec.step_tokens or None)
        samples = []
        for sample in Soak(engine, lambda: runner.memory().get("allocated", 0), seed).run(args.requests, args.every):
            samples.append(sample)
            print(
                f"{sample.requests:6d} requests, {sample.rss / 1e6:8.2f} MB, {sample.device:,} on the device",
                flush=True,
            )
        engine.close()
    verdicts = judge(samples, args.tolerance)
    print(f"\n{report(samples, verdicts, args.out)}\n\nwritten to {args.out}")
    if any(verdict.problem for verdict in verdicts):
        sys.exit(f"grew (seed {seed}): {', '.join(verdict.name for verdict in verdicts if verdict.problem)}")


if __name__ == "__main__":
    main()
