"""Closed-loop load on any server that speaks OpenAI's API: N streams at once over SSE, with the standard library only.

    python bench/load.py --url http://127.0.0.1:8000 --model NAME --streams 1,4,8 --prompt-words 64 --max-tokens 64

For each level it keeps N streaming requests in flight until --requests (3 N, at least 4, unless given) are done, and
prints one JSON object a line:

  out_tok_s  generated tokens per second of wall time over the level (tokens of `usage`, else chunks)
  ttft_ms    time to the first streamed text, [p50, p99]
  itl_ms     time between the streamed chunks of one request, [p50, p99]
  e2e_ms     whole request, p50
  bad        requests that failed, or ended without [DONE] or a finish_reason; `why` is the first of their reasons

The prompts are chosen with a fixed seed from common words and all differ, so that no server gains from a prefix cache;
--same-prefix W gives every prompt the same first W words. The exit status is 1 if a request was bad. With --smoke it
starts a server of its own.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness.closed_loop import Load, run_level
from bench.harness.command_line import at_least, command_line, levels, not_negative, parsed

if TYPE_CHECKING:
    from cli.config.model import ChosenModel
    from cli.config.settings import Settings
    from gateway.fleet.launch import WorkerLaunch

SMOKE_MODEL = "scripted"
SMOKE_RATE = 100.0
"""Decode steps a second. At an unlimited rate all tokens may arrive in one chunk."""

# The server of `--smoke` needs more than the standard library, and load itself does not: its imports are local.


def paced_launches(settings: "Settings", model: "ChosenModel") -> "list[WorkerLaunch]":
    """A scripted worker that runs `SMOKE_RATE` steps a second."""
    from msgspec.structs import replace

    from cli.config.launch import worker_command, worker_specs
    from gateway.fleet.launch import WorkerLaunch
    from workers.process.spec import ScriptedSpec

    specs = [replace(spec, scripted=ScriptedSpec(SMOKE_RATE)) for spec in worker_specs(settings, model)]
    return [WorkerLaunch(spec.name, model.name, worker_command(spec)) for spec in specs]


@contextlib.contextmanager
def scripted_server() -> Iterator[str]:
    """A server without a model, until the block ends; yields its URL."""
    from bench.harness.served import served

    with served({"name": SMOKE_MODEL, "backend": "scripted"}, paced_launches) as found:
        yield f"http://{found.server.host}:{found.server.port}"


def run(args: argparse.Namespace, url: str) -> int:
    """Print a line for each level. Returns how many requests were bad."""
    load = Load(
        url, args.model, args.max_tokens, args.prompt_words, args.same_prefix, args.path, args.key, args.temperature,
        args.extra,
    )  # fmt: skip
    randomness = random.Random(args.seed)
    bad = 0
    for streams in args.streams:
        requests = args.requests or max(4, 3 * streams)
        figures = {"label": args.label} | asyncio.run(run_level(load, streams, requests, randomness))
        print(json.dumps(figures), flush=True)
        bad += figures["bad"]
    return bad


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--url", default="", help="the server, http://HOST:PORT")
    parser.add_argument("--path", default="/v1/completions", help="/v1/completions or /v1/chat/completions")
    parser.add_argument("--model", default="", help="a name that the server serves")
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
    smoke = {"model": SMOKE_MODEL, "streams": "1,2", "prompt_words": 4, "max_tokens": 16, "extra": {"ignore_eos": True}}
    args = parsed(parser, words, smoke=smoke)
    if not args.smoke and not (args.url and args.model):
        parser.error("the following arguments are required: --url and --model, unless --smoke is given")
    return args


def main() -> None:
    args = arguments()
    with scripted_server() if args.smoke else contextlib.nullcontext(args.url) as url:
        bad = run(args, url)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
