"""Two models that do not fit into memory together: the time to load one, and what is lost while they take turns.

    python bench/gateway_load/model_swap.py [--model 0.5b] [--quantize int8] [--rounds 5] [--streams 2] [--seconds 40]
        [--peer GGUF] [--llama-cpp DIR]

The server is `baton serve` with two models of one shape, each with a worker process on the IREE engine, and a budget
for one of them. First one request at a time is sent: shown are the median and the longest time to its first token if
its model is loaded; if it is not loaded, memory is free, and its files are in the page cache; if the other model has
to be unloaded for it; and if nothing of the model is in the page cache. Beside that stand the times that reading the
packed weights takes, from the page cache and from the disk, in one thread. Then --streams clients send requests of 64
tokens one after the other: to one of the models, and for twice the time to both, with as many clients for each. Shown
are the tokens a second, the median and the longest time to a first token, and the answers that were not whole.

With --peer, the file of a model for it, the same is measured of llama-server in place of Baton, with two such models
and `--models-max 1`: it loads and unloads them by itself as well. `python bench/peers/llama_cpp.py` builds it.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
import psutil

from actors.process.logs import configure_logging
from bench.harness.child_server import free_port, running
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.shapes import TOKENS, make_model
from bench.harness.sse_client import BadAnswerError, StreamedAnswer, request
from bench.peers.llama_cpp import LLAMA_CPP

SLOTS, CONTEXT = 4, 2048
PROMPT, ANSWER = 16, 64
NAMES = ("first", "second")
START_TIMEOUT_S = 900.0
BLOCK = 1 << 22
"""Bytes that are read at once."""


@dataclass
class TimedAnswer(StreamedAnswer):
    """An answer, and when its first token came, whether it had a text or was a part of a character."""

    first: float = 0.0

    @property
    def wait_s(self) -> float:
        return self.first - self.began

    def take(self, event: dict[str, Any]) -> None:
        if event.get("choices") and not self.first:
            self.first = time.perf_counter()
        super().take(event)


@dataclass(frozen=True)
class SwappingServer:
    """A running server with two models."""

    url: str
    files: Callable[[], list[Path]]
    """Returns the files that a loaded model is read from: its weights first."""
    unload: Callable[[str], None]

    async def ask(self, model: str, chosen: random.Random, tokens: int = ANSWER) -> TimedAnswer:
        """The whole answer to a prompt that no cache has."""
        body: dict[str, Any] = {"model": model, "prompt": chosen.choices(TOKENS, k=PROMPT), "max_tokens": tokens}
        body |= {"temperature": 0.0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        answer = TimedAnswer(time.perf_counter())
        await request(urllib.parse.urlsplit(self.url), "/v1/completions", "", body, answer)
        return answer

    def first_token_s(self, model: str, chosen: random.Random) -> float:
        """Seconds from a request to its first token."""
        return asyncio.run(self.ask(model, chosen, 4)).wait_s


@dataclass
class TurnTotals:
    """Totals of the answers that clients got in some time."""

    tokens: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds to the first token of each answer."""
    broken: int = 0
    """Answers that were not whole."""


async def load(server: SwappingServer, models: Sequence[str], streams: int, seconds: float) -> TurnTotals:
    """Send requests with `streams` clients for each of these models."""
    found, until = TurnTotals(), time.perf_counter() + seconds

    async def client(model: str, chosen: random.Random) -> None:
        while time.perf_counter() < until:
            try:
                answer = await server.ask(model, chosen)
            except (BadAnswerError, ValueError, OSError):
                found.broken += 1
                continue
            found.waits.append(answer.wait_s)
            found.tokens += answer.tokens if answer.ended < until else 0

    async with asyncio.TaskGroup() as group:
        for number, model in enumerate(model for model in models for _ in range(streams)):
            group.create_task(client(model, random.Random(number)))
    return found


@contextmanager
def baton(path: Path, cache: Path, quantize: str, slots: int, context: int) -> Iterator[SwappingServer]:
    """`baton serve` with the models of `NAMES`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    own = "memory_bytes = 6\nkeep_alive_s = 'never'"  # of ten bytes in all: one of two fits
    lines = ['backend = "iree"', 'dtype = "bfloat16"', f'cache_dir = "{cache}"', 'log_level = "warning"']
    lines += [f"port = {port}", "memory_budget = 10", f"max_batch_size = {slots}", f"context = {context}"]
    lines += ["worker_wait_s = 600", 'speculate = "off"', *([f'quantize = "{quantize}"'] if quantize else [])]
    lines += [f'[[models]]\nname = "{name}"\npath = "{path}"\n{own}' for name in NAMES]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "baton.toml"
        settings.write_text("\n".join(lines))
        command = [sys.executable, "-m", "cli", "serve", "--config", str(settings)]
        with running(command, f"{url}/health/ready", START_TIMEOUT_S):
            unload = lambda name: operate(url, f"/admin/models/{name}/unload")  # noqa: E731
            yield SwappingServer(url, lambda: [*mapped_files(url, cache), *path.iterdir()], unload)


@contextmanager
def llama_server(program: Path, model: Path, slots: int, context: int, threads: int) -> Iterator[SwappingServer]:
    """llama-server with the models of `NAMES`, of which it loads one at a time."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        presets = Path(folder) / "models.ini"
        options = f"model = {model}\nparallel = {slots}\nctx-size = {slots * context}\nthreads = {threads}\n"
        presets.write_text("".join(f"[{name}]\n{options}" for name in NAMES))
        command = [str(program), "--models-preset", str(presets), "--models-max", "1", "--port", str(port)]
        with running([*command, "--no-ui", "--log-disable"], f"{url}/health", START_TIMEOUT_S):
            yield SwappingServer(url, lambda: [model], lambda name: unload_of_llama(url, name))


def operate(url: str, path: str) -> None:
    """Run an operation of Baton to its end."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.post(path, json={}).raise_for_status()
        while (found := client.get("/admin/operation").json()["operation"])["outcome"] == "running":
            time.sleep(0.02)
        if found["outcome"] != "done":
            raise RuntimeError(found["lines"])


def unload_of_llama(url: str, name: str) -> None:
    """Unload a model of llama-server, and wait for the end of its process."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.post("/models/unload", json={"model": name}).raise_for_status()
        while any(each["status"]["value"] != "unloaded" for each in client.get("/models").json()["data"]):
            time.sleep(0.02)


def mapped_files(url: str, cache: Path) -> list[Path]:
    """The files of the cache that a worker has mapped, the largest first."""
    workers = httpx.get(f"{url}/admin/workers", timeout=60, trust_env=False).json()["workers"]
    pids = [each["pid"] for each in workers if each["state"] == "ready"]
    maps = {Path(each.path) for pid in pids for each in psutil.Process(pid).memory_maps()}
    files = [each for each in maps if each.is_relative_to(cache.resolve())]
    return sorted(files, key=lambda each: each.stat().st_size, reverse=True)


def drop_pages(files: Sequence[Path]) -> None:
    """Drop files from the page cache. No process may have mapped them."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_s(file: Path) -> float:
    """Seconds to read a file."""
    began, block = time.perf_counter(), bytearray(BLOCK)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(block):
            pass
    return time.perf_counter() - began


def single(server: SwappingServer, rounds: int) -> None:
    """Measure one request at a time, and print the times."""
    chosen = random.Random(0)
    for name in (*NAMES, *NAMES):  # compiles graphs and packs weights
        server.first_token_s(name, chosen)
    found: dict[str, list[float]] = {}
    limits: dict[str, list[float]] = {"reading from the page cache": [], "reading from the disk": []}
    for _ in range(rounds):
        server.first_token_s(NAMES[0], chosen)
        found.setdefault("loaded", []).append(server.first_token_s(NAMES[0], chosen))
        found.setdefault("in place of the other one", []).append(server.first_token_s(NAMES[1], chosen))
        server.unload(NAMES[1])
        found.setdefault("not loaded, in the page cache", []).append(server.first_token_s(NAMES[0], chosen))
        files = server.files()
        server.unload(NAMES[0])
        limits["reading from the page cache"].append(read_s(files[0]))
        drop_pages(files)
        limits["reading from the disk"].append(read_s(files[0]))
        drop_pages(files)
        found.setdefault("not loaded, on the disk", []).append(server.first_token_s(NAMES[0], chosen))
    print(f"{'model':<32}{'median s':>10}{'longest s':>11}")
    for name, times in (found | limits).items():
        print(f"{name:<32}{statistics.median(times):>10.3f}{max(times):>11.3f}")
    print(f"the file that was read has {files[0].stat().st_size / 1e6:.0f} MB", flush=True)


def busy(server: SwappingServer, streams: int, seconds: float) -> None:
    """Measure one model under load, and both in turn, and print what they get."""
    print(f"{'load':<12}{'answers':>9}{'broken':>8}{'tokens/s':>10}{'first token, median s':>23}{'longest s':>11}")
    rates = []
    for models, time_s in ((NAMES[:1], seconds), (NAMES, 2 * seconds)):
        asyncio.run(load(server, models[:1], 1, 0.1))  # whatever was loaded before
        found = asyncio.run(load(server, models, streams, time_s))
        rates.append(found.tokens / time_s)
        waits = found.waits
        cells = (
            f"{len(waits):>9}{found.broken:>8}{rates[-1]:>10.1f}{statistics.median(waits):>23.3f}{max(waits):>11.2f}"
        )
        print(f"{'one model' if len(models) == 1 else 'both in turn':<12}{cells}", flush=True)
    print(f"lost by the turns: {100 * (1 - rates[1] / rates[0]):.0f} % of the tokens a second", flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "0.5b")
    add_quantize(parser)
    parser.add_argument("--rounds", type=at_least(0), default=5, help="of single requests; 0: none")
    parser.add_argument("--streams", type=at_least(1), default=2, help="clients of each model")
    parser.add_argument("--seconds", type=at_least(0), default=40, help="of the load on one model; 0: no load")
    parser.add_argument("--peer", type=Path, help="a GGUF file; measures llama-server")
    parser.add_argument("--llama-cpp", type=Path, default=LLAMA_CPP.folder("host") / "bin", help="its programs")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"model": "tiny", "rounds": 1, "seconds": 2, "streams": 1})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends as well
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (SLOTS, CONTEXT)
    path = make_model(args.cache_dir, args.model)
    if args.peer is None:
        server = baton(path, args.cache_dir / "graphs", args.quantize, slots, context)
    else:
        server = llama_server(args.llama_cpp / "llama-server", args.peer, slots, context, os.cpu_count() or 1)
    with server as swapping:
        if args.rounds:
            single(swapping, args.rounds)
        if args.seconds:
            busy(swapping, args.streams, args.seconds)


if __name__ == "__main__":
    main()
