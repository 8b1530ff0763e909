"""Streams whose gateway is lost: what their clients get, and how long they wait for it.

    python bench/scale_out/gateway_loss.py [--streams 64] [--others 16] [--tokens 400] [--end kill|stop]

Two gateways share a Redis and two scripted workers of 40 tokens a second, each a process of its own on this machine.
The streams are read once undisturbed. Then they are read again, all at the first gateway, and others at the second one.
The first one gets SIGKILL, or SIGTERM without a grace, and its clients resume their streams at the second one, with the
id of the last event that they have, until it has them. Needs `redis-server` and the extra `redis`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from bench.harness.command_line import at_least, command_line, parsed
from bench.scale_out.shared_gateways import SharedGateway, shared_gateways

PAUSE_S = 0.1
"""Pause of a client before it tries again."""
ANSWER_S = 120.0


class ResumedStream:
    """A client that reads one stream to its end, at whichever gateway has it."""

    def __init__(self, number: int, tokens: int, urls: Sequence[str]) -> None:
        """It begins at the first of `urls`, and takes them in turn."""
        self._urls = urls
        self._body = {
            "model": "scripted",
            "prompt": f"Stream {number}",
            "seed": 7,
            "max_tokens": tokens,
            "temperature": 1.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"resume_s": 60},
        }
        self.text = ""
        self.began = asyncio.Event()
        """It has some text."""
        self.finish = ""
        self.resumed = 0
        """Connections that continued it."""
        self._id = self._last = ""
        self._done = False
        self._stamp = 0.0
        self.gap_s = 0.0
        """The longest time between two pieces."""

    async def read(self, client: httpx.AsyncClient) -> None:
        """Read it."""
        turn = 0
        end = time.perf_counter() + ANSWER_S
        while not self._done and time.perf_counter() < end:
            url = self._urls[turn % len(self._urls)]
            try:
                if not self._id:
                    await self._take(client.stream("POST", f"{url}/v1/completions", json=self._body))
                else:
                    headers = {"last-event-id": self._last} if self._last else {}
                    await self._take(client.stream("GET", f"{url}/v1/streams/{self._id}", headers=headers))
            except httpx.HTTPError:
                turn += 1
            if not self._done:
                await asyncio.sleep(PAUSE_S)

    async def _take(self, opening: Any) -> None:
        event_id = ""
        async with opening as answer:
            if answer.status_code == httpx.codes.CONFLICT:  # the other gateway is not known to be gone yet
                return
            answer.raise_for_status()
            self.resumed += bool(self._id)
            self._id = answer.headers["x-stream-id"]
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: {"):
                    self._piece(json.loads(line.removeprefix("data: ")))
                    self._last = event_id
                elif line == "data: [DONE]":
                    self._done = True

    def _piece(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise RuntimeError(chunk["error"])
        for choice in chunk["choices"]:
            self.text += choice["text"]
            self.finish += choice["finish_reason"] or ""
        self.began.set()
        now = time.perf_counter()
        self.gap_s = max(self.gap_s, now - (self._stamp or now))
        self._stamp = now


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=at_least(1), default=64, metavar="N", help="streams of the lost gateway")
    parser.add_argument("--others", type=at_least(1), default=16, metavar="N", help="streams of the other one")
    parser.add_argument("--tokens", type=at_least(100), default=400, metavar="N", help="tokens of a stream")
    parser.add_argument("--end", choices=("kill", "stop"), default="kill", help="the end of the gateway")
    return parsed(parser, words, smoke={"streams": 8, "others": 2, "tokens": 150})


async def measure(gateways: Sequence[SharedGateway], count: int, others: int, tokens: int, end: str) -> str:
    """Lose a gateway under streams. Returns the lines of figures."""
    first, second = (each.url for each in gateways)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=ANSWER_S, limits=limits, trust_env=False) as client:
        undisturbed = [ResumedStream(number, tokens, [second]) for number in range(count + others)]
        await asyncio.gather(*(stream.read(client) for stream in undisturbed))
        lost = [ResumedStream(number, tokens, [first, second]) for number in range(count)]
        kept = [ResumedStream(number, tokens, [second]) for number in range(count, count + others)]
        tasks = [asyncio.create_task(stream.read(client)) for stream in [*lost, *kept]]
        await asyncio.gather(*(stream.began.wait() for stream in [*lost, *kept]))
        await asyncio.sleep(1.0)
        had = statistics.mean(len(stream.text) for stream in lost)  # a character of scripted text is a token
        await asyncio.to_thread(gateways[0].kill if end == "kill" else gateways[0].stop)
        await asyncio.gather(*tasks)
    return _figures(lost, kept, [stream.text for stream in undisturbed], had)


def _figures(lost: Sequence[ResumedStream], kept: Sequence[ResumedStream], right: Sequence[str], had: float) -> str:
    every = [*lost, *kept]
    ended = [stream.finish == "length" for stream in every]
    pairs = [(stream.text, text) for stream, text in zip(every, right, strict=True)]
    doubled = sum(len(text) > len(wanted) for text, wanted in pairs)
    altered = sum(text != wanted and len(text) <= len(wanted) for text, wanted in pairs)
    gaps = sorted(stream.gap_s for stream in lost)
    moved = sum(stream.resumed > 0 for stream in lost)
    others_s = max(stream.gap_s for stream in kept)
    return (
        f"{len(every)} streams: {len(every) - sum(ended)} lost, {altered} altered, {doubled} doubled; "
        f"{moved} moved after {had:.0f} tokens, "
        f"gap p50 {gaps[len(gaps) // 2]:.2f} s, p99 {gaps[(99 * len(gaps) - 1) // 100]:.2f} s, "
        f"longest gap of the others {others_s:.2f} s"
    )


def main() -> None:
    """Run the measurement."""
    args = arguments()
    if find_spec("redis") is None:
        print("redis is not installed: pip install '.[redis]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            slots = args.streams + args.others
            with shared_gateways(Path(folder), 2, slots, grace_s=0.0) as gateways:
                print(asyncio.run(measure(gateways, args.streams, args.others, args.tokens, args.end)))
        except FileNotFoundError as error:
            print(error)


if __name__ == "__main__":
    main()
