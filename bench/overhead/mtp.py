"""Tokens a second with a head for multi-token prediction and without it.

    python bench/overhead/mtp.py [--model 110m] [--quantize int4] [--heads random right] [--streams 1 4 8] [--rounds 5]
        [--seconds 10]

The checkpoint has the shape of `--model` as a MiMo. All weights of `random` are random, so that the head is never
right: it is the bound on what a head costs that is of no use. In `right`, the next token follows from the last one
alone, by weights that are zero or chosen, which are as many; the head has them too, so that it is always right. Each is
measured with and without the head in turn, in the same process; figures are medians over the rounds, the ratio that of
pairs.

With `--seconds` the two take turns of some steps for so long, after half of it that does not count, in place of
rounds: the ratios are those of the time of a token and of its processor time without the head to those with it, with
bounds of 95 % confidence.
"""

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from msgspec.structs import replace

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.paired_engines import TURN_S, Ratio, Side, take_turns
from bench.harness.settled import load_settled
from bench.harness.shapes import SHAPES, TOKENS
from bench.overhead.draft_model import NoDrafter, compare
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint, write_safetensors
from workers.checkpoints.checkpoint import open_weights
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.mtp.head_upkeep import HeadUpkeep
from workers.engine.speculation.mtp.mtp_drafter import RELATIVE_COST, MtpDrafter
from workers.engine.speculation.speculator import Speculator

CONTEXT = 1024
HEADS = ("random", "right")


def make_model(folder: Path, shape: str, head: str) -> Path:
    """Make a checkpoint, unless it exists."""
    path = folder / "models" / f"mimo-{shape}-{head}"
    if path.exists():
        return path
    half = path.with_name(f"{path.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    sizes: dict[str, Any] = {"dtype": "bfloat16", "max_positions": 32768} | SHAPES[shape] | {"family": "mimo"}
    make_checkpoint(half, tied=False, **sizes)
    if head == "right":
        weights = dict(open_weights(half))
        write_safetensors(half / "model.safetensors", {name: right(name, weights) for name in weights})
    half.rename(path)
    return path


def right(name: str, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Return a tensor of the model that goes from each of `TOKENS` to the next one, and whose head does so as well."""
    tensor = weights[name]
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return np.zeros_like(tensor)
    if name.endswith("input_proj.weight"):
        rows = len(tensor)
        return np.concatenate([np.zeros((rows, rows)), np.eye(rows)], axis=1).astype(tensor.dtype)
    if name == "lm_head.weight":
        head, before = np.zeros_like(tensor), [TOKENS[-1], *TOKENS[:-1]]
        head[TOKENS.start : TOKENS.stop] = weights["model.embed_tokens.weight"][before]
        return head
    return tensor


def drafting_by(runner: Runner) -> Speculator:
    """Return what drafts with the head of a runner alone."""
    own = runner.draft_head
    if own is None:
        raise RuntimeError("the head was not loaded")
    drafting = BatchDrafting(MtpDrafter(own), RELATIVE_COST, upkeep=HeadUpkeep(own))
    return Speculator(runner.capabilities, lambda _: [NoDrafter()], batched=drafting)


def measure(plain: Runner, with_head: Runner, head: str, streams: int, args: argparse.Namespace) -> str:
    """Return a line of the table."""
    speculator = drafting_by(with_head)

    def requests(randomness: random.Random) -> list[EngineRequest]:
        return [
            EngineRequest(stream, tuple(randomness.choices(TOKENS, k=args.prompt)), Sampling(), args.max_tokens)
            for stream in range(streams)
        ]

    return f"{head:8} {streams:7} {compare(plain, with_head, speculator, args.rounds, requests)}"


def measure_turns(plain: Runner, with_head: Runner, head: str, streams: int, args: argparse.Namespace) -> str:
    """Return a line of the table of turns."""

    def request(stream: int) -> EngineRequest:
        prompt = tuple(random.Random(stream).choices(TOKENS, k=args.prompt))
        return EngineRequest(stream, prompt, Sampling(), args.max_tokens)

    sides = Side(plain, None, streams, request), Side(with_head, drafting_by(with_head), streams, request)
    take_turns(*sides, args.seconds / 2, TURN_S)
    pairs = take_turns(*sides, args.seconds, TURN_S)
    ratios = [Ratio.of(pairs, field) for field in ("seconds", "cpu_s")]
    shown = "  ".join(f"{each.value:6.3f} {each.low:6.3f} {each.high:6.3f}" for each in ratios)
    return f"{head:8} {streams:7}  {shown} {sides[1].gauges.draft_tokens:8}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS), help="the weights")
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 4, 8], help="at once")
    parser.add_argument("--prompt", type=at_least(1), default=128, help="tokens of a prompt")
    parser.add_argument("--max-tokens", type=at_least(2), default=200, help="tokens of an answer")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each, in turn; medians are printed")
    parser.add_argument("--seconds", type=above_zero, help="of turns for each figure; rounds without")
    add_cache_dir(parser)
    smoke = {"model": "tiny", "heads": ["right"], "streams": [1], "max_tokens": 40, "rounds": 1}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (max(8, *args.streams), CONTEXT)
    turns = args.seconds is not None
    print(
        "head     streams  off/on time, low, high  off/on CPU, low, high   drafted"
        if turns
        else "head     streams  off tok/s   on tok/s    ratio  drafted  accepted"
    )
    for head in args.heads:
        path = make_model(args.cache_dir, args.model, head)
        spec = Setup(path, args.cache_dir, slots, context, quantize=args.quantize).spec()
        plain = load_settled(replace(spec, speculate="off"))
        with_head = load_settled(replace(spec, speculate="auto"))
        try:
            for streams in args.streams:
                line = (measure_turns if turns else measure)(plain, with_head, head, streams, args)
                print(line, flush=True)
        finally:
            with_head.close()
            plain.close()


if __name__ == "__main__":
    main()
