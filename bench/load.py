"""Closed-loop load on any OpenAI-compatible server: N streams at once over SSE, with the standard library only.

    python bench/load.py --url http://127.0.0.1:8000 --model NAME --streams 1,4,8 --prompt-words 64 --max-tokens 64

For each level it keeps N streaming requests in flight until --requests (3 N, at least 4, unless given) are done, and
prints one JSON object a line:

  out_tok_s  generated tokens per second of wall time over the level (tokens of `usage`, else chunks)
  ttft_ms    time to the first streamed text, [p50, p99]
  itl_ms     time between the streamed chunks of one request, [p50, p99]
  e2e_ms     whole request, p50
  bad        requests that failed, or ended without [DONE] or a finish_reason; `why` is the first of their reasons

The prompts are drawn with a fixed seed from common words and all differ, so that no server gains from a prefix cache;
--same-prefix W gives every prompt the same first W words.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness.command_line import at_least, command_line, levels, not_negative

TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word"
)
WORDS = TEXT.split()
LINE_LIMIT = 1 << 22


class BadAnswerError(Exception):
    """The server answered with an error, or its stream ended before its end."""


@dataclass
class Answer:
    """One streamed answer: when it began and when each piece of text came, in seconds of one clock."""

    began: float
    stamps: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    finish: str | None = None
    done: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """One `data:` object of the stream."""
        if event.get("error"):
            raise BadAnswerError(repr(event["error"]))
        usage = event.get("usage") or {}
        self.tokens = usage.get("completion_tokens") or self.tokens
        for choice in event.get("choices") or []:
            self.finish = choice.get("finish_reason") or self.finish
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                self.stamps.append(time.perf_counter())


async def request(url: urllib.parse.SplitResult, path: str, key: str, body: dict[str, Any]) -> Answer:
    """Send one request and read its stream. Raises BadAnswerError, OSError, or ValueError for JSON that is none."""
    answer = Answer(time.perf_counter())
    host, port = url.hostname or "127.0.0.1", url.port or 80
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_LIMIT)
    try:
        writer.write(_render(f"{host}:{port}", path, key, json.dumps(body).encode()))
        await writer.drain()
        status = (await reader.readline()).split()
        if len(status) < 2 or status[1] != b"200":
            raise BadAnswerError(f"{status} {(await reader.read(2000))[-300:]!r}")
        async for data in _data(reader):
            if data == b"[DONE]":
                answer.done = True
                break
            answer.take(json.loads(data))
    finally:
        writer.close()
    answer.ended = time.perf_counter()
    if not (answer.done and answer.finish):
        raise BadAnswerError("no [DONE] or no finish_reason")
    return answer


def _render(host: str, path: str, key: str, payload: bytes) -> bytes:
    head = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"]
    head += [f"Content-Length: {len(payload)}"] + ([f"Authorization: Bearer {key}"] if key else [])
    return "\r\n".join([*head, "", ""]).encode() + payload


async def _data(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    async for line in reader:
        if line.startswith(b"data:"):
            yield line[5:].strip()


async def run_level(arguments: argparse.Namespace, streams: int, randomness: random.Random) -> dict[str, Any]:
    """Run one level and return its figures."""
    url = urllib.parse.urlsplit(arguments.url)
    prefix = [randomness.choice(WORDS) for _ in range(arguments.same_prefix)]
    total = arguments.requests or max(4, 3 * streams)
    todo = iter(range(total))
    good: list[Answer] = []
    bad: list[str] = []

    async def lane() -> None:
        for _ in todo:
            own = max(1, arguments.prompt_words - arguments.same_prefix)
            prompt = " ".join(prefix + [randomness.choice(WORDS) for _ in range(own)])
            body = {
                "model": arguments.model,
                "prompt": prompt,
                "max_tokens": arguments.max_tokens,
                "temperature": arguments.temperature,
                "stream": True,
                "stream_options": {"include_usage": True},
                **arguments.extra,
            }
            try:
                good.append(await request(url, arguments.path, arguments.key, body))
            except (BadAnswerError, OSError, ValueError) as error:
                bad.append(repr(error)[:300])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(lane())
    wall = time.perf_counter() - began
    return {"label": arguments.label, "streams": streams, "requests": total} | _figures(good, bad, wall)


def _figures(good: list[Answer], bad: list[str], wall: float) -> dict[str, Any]:
    tokens = sum(answer.tokens or len(answer.stamps) for answer in good)
    first = [1e3 * (answer.stamps[0] - answer.began) for answer in good if answer.stamps]
    between = [1e3 * (after - before) for answer in good for before, after in itertools.pairwise(answer.stamps)]
    return {
        "bad": len(bad),
        "why": bad[0] if bad else None,
        "out_tok_s": round(tokens / wall, 1),
        "tokens": tokens,
        "ttft_ms": [percentile(first, 0.5), percentile(first, 0.99)],
        "itl_ms": [percentile(between, 0.5), percentile(between, 0.99)],
        "e2e_ms": percentile([1e3 * (answer.ended - answer.began) for answer in good], 0.5),
        "wall_s": round(wall, 2),
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie; None without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--url", required=True, help="the server, http://HOST:PORT")
    parser.add_argument("--path", default="/v1/completions", help="/v1/completions or /v1/chat/completions")
    parser.add_argument("--model", required=True, help="a name that the server serves")
    parser.add_argument("--label", default="", help="goes into each line")
    parser.add_argument("--key", default="", help="an API key, sent as a bearer token")
    parser.add_argument("--streams", type=levels, default="1,4,8", help="levels, separated by commas")
    parser.add_argument(
        "--requests", type=at_least(0), default=0, help="of each level; 0 is three for each stream, 4 at least"
    )
    parser.add_argument("--prompt-words", type=at_least(1), default=64, help="words of a prompt")
    parser.add_argument("--same-prefix", type=at_least(0), default=0, help="words that all prompts begin with")
    parser.add_argument("--max-tokens", type=at_least(1), default=64, help="tokens of an answer")
    parser.add_argument("--temperature", type=not_negative, default=0.0, help="0 is greedy")
    parser.add_argument("--extra", type=json.loads, default={}, help="more fields of the body, a JSON object")
    parser.add_argument("--seed", type=int, default=1, help="of the words")
    arguments = parser.parse_args()
    randomness = random.Random(arguments.seed)
    for streams in arguments.streams:
        print(json.dumps(asyncio.run(run_level(arguments, streams, randomness))), flush=True)


if __name__ == "__main__":
    main()
