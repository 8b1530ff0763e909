"""Answers that sparse prefill loses: needles in haystacks of 2,048 to 16,384 tokens.

    python bench/overhead/needles.py [--prompts 2048 4096 8192 16384] [--keep 0.5 0.3 0.1] [--seen 64 8]
        [--needles 10] [--backend mlx]

The models are constructed (bench/constructed/retrieval.py): their weights are set so that they find a key of one token
again and say the value of three tokens after it, from prompts of random tokens in which each 64 have another key. A
prompt ends with one of its keys. They show what the method loses, not what a trained model would.

The model has at least eight times the parameters of the draft model, as servers demand; its further layers write
nothing. The draft model finds tokens in the same way, and looks at `--seen` of the 64 signs of a token: with 64 it
answers itself, with 8 one of 256 tokens looks the same to it. `kept` counts the prompts of which the value was kept.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from msgspec.structs import replace

from actors.process.logs import configure_logging
from bench.constructed.needles import VALUE, Haystack
from bench.constructed.retrieval import CODE, make_retrieval, parameters
from bench.harness.command_line import at_least, command_line, parsed, share
from bench.harness.engine import Setup
from bench.harness.options import add_backend, add_cache_dir
from bench.harness.settled import load_settled
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.sparse.kept_rows import Ranges
from workers.engine.sparse.selection import forced_ranges
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.speculation.batched.draft_model import DraftModel

DEPTHS = (0.1, 0.5, 0.9)
ROOM = 64
"""Positions after the longest prompt."""
SLOTS = 2
MODEL = {"layers": 4, "hidden": 768, "ffn": 2048}
SMOKE_MODEL = {"layers": 12, "hidden": 256, "ffn": 1024}


class PromptReader:
    """An engine that answers one prompt after the other. A common beginning of prompts is computed once."""

    def __init__(self, runner: Runner, draft: Runner | None = None) -> None:
        sparse = None if draft is None else SparsePrefill(draft, DraftModel(draft))
        self._engine = BatchEngine(runner, max_queue=1, step_tokens=1 << 20, sparse=sparse)
        self._asked = 0

    def answer(self, prompt: tuple[int, ...], keep: float | None = None) -> tuple[tuple[int, ...], Ranges]:
        """Return the greedy answer, and what of the prompt was kept: nothing for all of it."""
        self._asked += 1
        sparse = None if keep is None else SparsePrompt(keep, forced_ranges(len(prompt)))
        self._engine.submit(EngineRequest(self._asked, prompt, max_tokens=VALUE, sparse=sparse))
        tokens: list[int] = []
        kept: Ranges = ()
        while not self._engine.idle:
            result = self._engine.step()
            if result.failures:
                raise RuntimeError(result.failures[0].text)
            tokens += [each.token for each in result.tokens]
            for start in result.starts:
                kept = start.kept
        return tuple(tokens), kept


def itself(draft: Runner, args: argparse.Namespace) -> dict[tuple[int, float], int]:
    """Return how many prompts of each length and depth the draft model answers, and leave its slots empty."""
    reader, right = PromptReader(draft), dict.fromkeys(itertools.product(args.prompts, DEPTHS), 0)
    for length in args.prompts:
        for seed, depth in itertools.product(range(args.needles), DEPTHS):
            prompt, value = Haystack.of(seed, length).question(depth)
            right[length, depth] += reader.answer(prompt)[0] == value
    for slot in range(SLOTS):
        draft.reset(slot)
    return right


def table(model: Runner, draft: Runner, seen: int, args: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a draft model: right answers of `--needles` each."""
    alone = itself(draft, args)
    reader = PromptReader(model, draft)
    for length in args.prompts:
        whole = dict.fromkeys(DEPTHS, 0)
        cells = {depth: [[0, 0] for _ in args.keep] for depth in DEPTHS}
        for seed, depth in itertools.product(range(args.needles), DEPTHS):
            haystack = Haystack.of(seed, length)
            prompt, value = haystack.question(depth)
            whole[depth] += reader.answer(prompt)[0] == value
            for cell, keep in zip(cells[depth], args.keep, strict=True):
                tokens, kept = reader.answer(prompt, keep)
                cell[0] += tokens == value
                cell[1] += has(haystack, value, kept)
        for depth in DEPTHS:
            shown = "".join(f" {found:10} ({there:2})" for found, there in cells[depth])
            yield f"{seen:4} {length:7} {depth:6.0%} {whole[depth]:6} {alone[length, depth]:6}{shown}"
    for slot in range(SLOTS):
        model.reset(slot)


def has(haystack: Haystack, value: tuple[int, ...], kept: Ranges) -> bool:
    """Return whether a value, whose tokens are in the haystack once, was kept together with its key."""
    at = haystack.tokens.index(value[0])
    return not kept or any(start < at and at + VALUE <= end for start, end in kept)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--prompts", type=at_least(256), nargs="+", default=[2048, 4096, 8192, 16384], help="tokens")
    parser.add_argument(
        "--keep", type=share, nargs="+", default=[0.5, 0.3, 0.1], help="parts of a prompt that are kept"
    )
    seen: dict[str, Any] = {"type": int, "choices": range(1, CODE + 1), "metavar": "SIGNS"}
    parser.add_argument("--seen", nargs="+", default=[64, 8], help="signs of a token that draft models see", **seen)
    parser.add_argument("--needles", type=at_least(1), default=10, help="prompts of each length and depth")
    add_backend(parser)
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"prompts": [512], "keep": [0.5], "seen": [64], "needles": 2})


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    configure_logging("bench", "warning")
    made = args.cache_dir / "models"
    path = make_retrieval(made, **(SMOKE_MODEL if args.smoke else MODEL))

    def load(checkpoint: Path, *, attention: bool = False) -> Runner:
        setup = Setup(checkpoint, args.cache_dir, SLOTS, max(args.prompts) + ROOM, backend=args.backend)
        return load_settled(replace(setup.spec(), attention=attention))

    model = load(path)
    try:
        for seen in args.seen:
            small = make_retrieval(made, seen=seen)
            if seen == args.seen[0]:
                print(
                    f"{parameters(path)} parameters, {parameters(path) / parameters(small):.1f} times the draft model's"
                )
                print("seen  prompt  depth  whole  draft" + "".join(f"  keep {keep:.0%} (kept)" for keep in args.keep))
            draft = load(small, attention=True)
            try:
                for line in table(model, draft, seen, args):
                    print(line, flush=True)
            finally:
                draft.close()
    finally:
        model.close()


if __name__ == "__main__":
    run(arguments())
