"""Images over HTTP on IREE: what they cost the streams of others, and how long the first token takes.

    python bench/gateway_load/images.py [--parts streams first growth] [--side 256] [--large 1024] [--rounds 3]

Models have Qwen3-VL's architecture and random weights, made once. `streams`: --text streams of text run alone, and then
again while as many clients send one image after the other, each new, of --side pixels a side, and read a short answer.
Shown are the median and the 99th percentile of the time between two tokens of the text streams, of all rounds, in which
both take turns. Tokens that arrive together count as one, and nothing is drafted. Images are made before a round: what
that takes is no cost of a server, and would delay the stamps of the streams in the same process.

`first`: the time to the end of an answer of one token about a new image of --large pixels a side, beside those of
--peers on the same weights: llama-server, whose own converter writes them, and mlx-vlm's server. Medians of the rounds,
after one request that does not count.

`growth`, unless --parts leaves it out the longest part: --requests answers of two tokens about new images of
--growth-side pixels a side, from the smallest model, with a small cache of rows. The first quarter is warm-up; after it
the resident memory of neither gateway nor worker may grow by more than --tolerance bytes a request. Otherwise the exit
status is 1, but not with --smoke.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.gateway_load.image_growth import processes, report, send_all
from bench.gateway_load.vision_model import SHAPES, data_url, make_vision_model
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.options import add_cache_dir
from bench.harness.served import served
from bench.harness.sse_client import StreamedAnswer, request
from bench.harness.words import WORDS
from bench.peers.llama_cpp import LlamaCpp
from bench.peers.mlx_vlm import mlx_vlm_server
from bench.peers.weights.llama_cpp_files import make_file
from cli.chaos.rounds import percentile
from workers.host.topology import usable_cores

NAME = "vision"
PATH = "/v1/chat/completions"
SHORT = 8
"""Tokens of an answer about an image, while others stream."""
CONTEXT = 2048
MADE_AHEAD = 24
"""Images of each client that are made before a round. Further ones are made when they are sent."""


class TokenTimes(StreamedAnswer):
    """An answer with a stamp for each event that has tokens, also those without text."""

    def take(self, event: dict[str, Any]) -> None:
        count = len(self.stamps)
        super().take(event)
        if any(choice.get("token_ids") for choice in event.get("choices") or []) and len(self.stamps) == count:
            self.stamps.append(time.perf_counter())

    def gaps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.stamps)]


def asked_of(content: Any, tokens: int, model: str = NAME) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }


class ImageClients:
    """Clients of one server; no two of their images are equal."""

    def __init__(self, url: str, model: str = NAME) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._model = model
        self._random = random.Random(3)
        self._seeds = itertools.count()
        self._made: list[str] = []
        self.images = 0
        """Answers about images that are complete."""

    async def stream(self, tokens: int) -> list[float]:
        """Return the seconds between the tokens of an answer to a text."""
        body = asked_of(" ".join(self._random.choices(WORDS, k=20)), tokens, self._model) | {"return_token_ids": True}
        answer = TokenTimes(time.perf_counter())
        await request(self._url, PATH, "", body, answer)
        return answer.gaps()

    async def image(self, side: int, tokens: int) -> float:
        """Return the seconds that an answer about a new image takes."""
        url = self._made.pop() if self._made else data_url(side, next(self._seeds))
        words = " ".join(self._random.choices(WORDS, k=5))
        content = [{"type": "text", "text": words}, {"type": "image_url", "image_url": {"url": url}}]
        answer = await request(self._url, PATH, "", asked_of(content, tokens, self._model))
        self.images += 1
        return answer.ended - answer.began

    async def round(self, streams: int, tokens: int, side: int) -> list[float]:
        """Return the times between tokens of all streams of text; beside images, if these have a side."""
        if side:
            self._made = [data_url(side, next(self._seeds)) for _ in range(streams * MADE_AHEAD)]

        async def look() -> None:
            while True:
                await self.image(side, SHORT)

        looking = [asyncio.create_task(look()) for _ in range(streams if side else 0)]
        found = await asyncio.gather(*(self.stream(tokens) for _ in range(streams)))
        for task in looking:
            if task.done():
                task.result()  # it failed
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        return [gap for gaps in found for gap in gaps]


def options(model: Path, args: argparse.Namespace, slots: int) -> dict[str, Any]:
    return {
        "model": str(model),
        "name": NAME,
        "backend": "iree",
        "max_batch_size": slots,
        "context": CONTEXT,
        "cache_dir": str(args.cache_dir),
        "speculate": "off",
        "log_level": "error",
    }


async def measure_streams(url: str, args: argparse.Namespace) -> None:
    clients = ImageClients(url)
    await clients.image(args.side, SHORT)
    gaps: dict[str, list[float]] = {"alone": [], "beside images": []}
    for _ in range(args.rounds):
        for name, side in (("alone", 0), ("beside images", args.side)):
            gaps[name] += await clients.round(args.text, args.tokens, side)
    print(
        f"{args.model} bf16, {args.text} streams of text, {clients.images - 1} answers about {args.side} pixels a side"
    )
    if not all(gaps.values()):
        raise ValueError("all tokens arrived together: choose more --tokens")
    high = {name: 1000 * (percentile(each, 0.99) or 0.0) for name, each in gaps.items()}
    for name, each in gaps.items():
        ratio = high[name] / high["alone"]
        print(f"{name:14} median {1000 * statistics.median(each):7.2f} ms, p99 {high[name]:7.2f} ms {ratio:5.2f}x")


async def measure_first(url: str, args: argparse.Namespace, name: str, model: str = NAME) -> float:
    clients = ImageClients(url, model)
    times = [await clients.image(args.large, 1) for _ in range(args.rounds + 1)]
    median = statistics.median(times[1:])
    print(f"{name:10} first token after {median:7.2f} s", flush=True)
    return median


async def measure_growth(url: str, args: argparse.Namespace, server: int) -> int:
    clients, watched = ImageClients(url), processes(server)
    began = time.perf_counter()
    await send_all(lambda: clients.image(args.growth_side, 2), args.requests, watched)
    print(f"{clients.images} answers about images of {args.growth_side} pixels in {time.perf_counter() - began:.0f} s")
    return report(watched, args.tolerance)


def mlx_vlm_first(model: Path, args: argparse.Namespace) -> float:
    """Measure mlx-vlm's server. Raises `PeerError`."""
    with mlx_vlm_server(model) as (url, name):
        return asyncio.run(measure_first(url, args, "mlx-vlm", name))


def llama_cpp_first(model: Path, args: argparse.Namespace) -> float:
    """Convert the checkpoint unless it is, and measure llama-server. Raises `PeerError`."""
    peer = LlamaCpp.find(args.llama_cpp, usable_cores())
    file, tower = (model.with_name(f"{model.name}{end}.gguf") for end in ("", "-mmproj"))
    for target, more in ((file, ()), (tower, ("--mmproj",))):
        if not target.exists():
            make_file(model, target, "bf16", peer, more)
    with peer.with_options("--mmproj", str(tower), "--jinja").server(file, 1, CONTEXT) as url:
        return asyncio.run(measure_first(url, args, "llama.cpp"))


PEERS = {"llama.cpp": llama_cpp_first, "mlx-vlm": mlx_vlm_first}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_cache_dir(parser)
    parts = ["streams", "first", "growth"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what is measured")
    parser.add_argument("--model", choices=list(SHAPES), default="60m", help="of the part `streams`")
    parser.add_argument("--text", type=at_least(1), default=4, help="streams of text, and clients with images")
    parser.add_argument("--tokens", type=at_least(3), default=200, help="of each stream of text")
    parser.add_argument("--side", type=at_least(32), default=256, help="of the images beside streams, in pixels")
    parser.add_argument("--first-model", choices=list(SHAPES), default="0.5b", help="of the part `first`")
    parser.add_argument("--large", type=at_least(32), default=1024, help="side of the images of the part `first`")
    parser.add_argument("--requests", type=at_least(4), default=10_000, help="of the part `growth`")
    parser.add_argument("--growth-side", type=at_least(32), default=64, help="side of the images of that part")
    parser.add_argument("--tolerance", type=above_zero, default=200.0, metavar="BYTES", help="growth a request")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="of each measurement")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="of the part `first`")
    parser.add_argument("--llama-cpp", type=Path, default=None, metavar="DIR", help="the folder of its programs")
    smoke = {"model": "tiny", "first_model": "tiny", "text": 1, "tokens": 400, "side": 64, "large": 64, "rounds": 1}
    smoke |= {"requests": 8}
    return parsed(parser, words, smoke=smoke | {"peers": []})


def main() -> int:
    args, status = arguments(), 0
    configure_logging("bench", "warning")
    for part, name, slots in (("streams", args.model, 2 * args.text), ("first", args.first_model, 2)):
        if part not in args.parts:
            continue
        model = make_vision_model(args.cache_dir, name)
        with served(options(model, args, slots)) as found:
            url = f"http://{found.server.host}:{found.server.port}"
            if part == "streams":
                asyncio.run(measure_streams(url, args))
                continue
            ours = asyncio.run(measure_first(url, args, "Baton"))
        for peer in args.peers:
            print(f"Baton takes {ours / PEERS[peer](model, args):.2f} times as long")
    if "growth" in args.parts:
        given = options(make_vision_model(args.cache_dir, "tiny"), args, 8) | {"image_cache_bytes": 16_000_000}
        with served(given) as found:
            url = f"http://{found.server.host}:{found.server.port}"
            status = asyncio.run(measure_growth(url, args, found.pid))
    return 0 if args.smoke else status


if __name__ == "__main__":
    sys.exit(main())
