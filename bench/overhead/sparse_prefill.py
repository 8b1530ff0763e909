"""Sparse prefill beside the whole prompt: the time to the first token, and what it does to answers.

    python bench/overhead/sparse_prefill.py [--model 110m] [--draft-model 10m] [--prompts 2048 4096 8192 16384]
        [--keep 0.3] [--needles 20] [--needle-tokens 560] [--backend mlx]

The first table has random weights: it shows the time alone. The draft model scores the prompt, and the model computes
the part that is kept; both times are in the one of the sparse prompt. Medians over the rounds, in turn.

The second one asks the built-in model for a name that a turn of a chat states, among turns about other things, as far
back as the row says. It was trained on windows of 640 tokens, which bound the prompts. Its draft model scores them,
which is a fifth of the model, more than `--sparse-prefill` takes, so that a server would refuse the pair; and then the
model itself, which no smaller one can be better than. `kept` counts the chats of which the name was kept.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from msgspec.structs import replace

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed, share
from bench.harness.engine import Setup
from bench.harness.options import BACKENDS, SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.settled import load_settled
from bench.harness.shapes import SHAPES, TOKENS, make_model
from models import builtin_path, draft_path
from models.corpus import names
from protocol.commands import Submit
from protocol.request import ChatInput, Limits, Message, Sampling
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.sparse.kept_rows import Ranges
from workers.engine.sparse.selection import forced_ranges
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.load_options import SparseSettings
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.process.spec import WorkerSpec
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

ROOM = 64
"""Positions after the longest prompt."""
SLOTS = 2
NEEDLE_CONTEXT = 1024
DEPTHS = (0.1, 0.5, 0.9)
"""Places of the turn with the name, as a part of the turns before the question."""
KEEPS = (0.5, 0.3, 0.1)
SYSTEM = Message("system", "You are a helpful assistant.")


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and its draft model."""

    target: Runner
    draft: Runner

    @classmethod
    def load(cls, target: Setup, draft: Setup) -> "Pair":
        """Load both and wait for their graphs."""
        return cls(load_settled(target.spec()), load_settled(_scored(draft)))

    def answer(self, request: EngineRequest) -> tuple[float, list[int], Ranges]:
        """Return the seconds to the first token, all tokens, and what of the prompt was kept; nothing for all."""
        sparse = SparsePrefill(self.draft, DraftModel(self.draft))
        engine = BatchEngine(
            self.target, max_queue=1, step_tokens=1 << 20, prefixes=PrefixPolicy(enabled=False), sparse=sparse
        )
        began, first, tokens = time.perf_counter(), 0.0, list[int]()
        kept: Ranges = ()
        engine.submit(request)
        while not engine.idle:
            result = engine.step()
            if result.failures:
                raise RuntimeError(result.failures[0].text)
            if result.tokens and not tokens:
                first = time.perf_counter() - began
            tokens += [each.token for each in result.tokens]
            for start in result.starts:
                kept = start.kept
        return first, tokens, kept

    def close(self) -> None:
        """Close both."""
        self.draft.close()
        self.target.close()


def _scored(setup: Setup) -> WorkerSpec:
    return replace(setup.spec(), attention=True)


def times(pair: Pair, prompts: Sequence[int], keep: float, rounds: int) -> Iterator[str]:
    """Yield the lines of the table of times."""
    yield "prompt  kept  whole ms  sparse ms  ratio"
    for length in prompts:
        found: list[tuple[float, float, int]] = []
        for seed in range(-1, rounds):
            prompt = tuple(random.Random(seed).choices(TOKENS, k=length))
            whole, _, _ = pair.answer(EngineRequest(1, prompt, max_tokens=1))
            part = SparsePrompt(keep, forced_ranges(length))
            sparse, _, kept = pair.answer(EngineRequest(2, prompt, max_tokens=1, sparse=part))
            if seed >= 0:  # the first ones may wait for pages of the cache
                found.append((whole, sparse, sum(end - start for start, end in kept) or length))
        whole, sparse = (statistics.median(each[at] for each in found) * 1000 for at in (0, 1))
        ratio = statistics.median(each[0] / each[1] for each in found)
        yield f"{length:6} {found[0][2]:5} {whole:9.0f} {sparse:10.0f} {ratio:6.2f}"


def chat(randomness: random.Random, depth: float, turns: int) -> tuple[ChatInput, str]:
    """Return a chat that states a name among other turns, and asks for it at its end, and the name."""
    name = randomness.choice(names.PEOPLE)
    others: list[tuple[str, str]] = []
    for _ in range(turns):
        left, right = randomness.randint(1, 9), randomness.randint(1, 9)
        others.append((f"What is {left} plus {right}?", f"{left} plus {right} is {left + right}."))
    others.insert(round(depth * len(others)), (f"My name is {name}.", f"Nice to meet you, {name}!"))
    messages = [SYSTEM]
    for asked, answered in others:
        messages += [Message("user", asked), Message("assistant", answered)]
    return ChatInput((*messages, Message("user", "What is my name?"))), name


def needles(pair: Pair, scorer: str, count: int, tokens: int) -> Iterator[str]:
    """Yield the lines of the table of names: how many answers have it, and in how many prompts it was kept."""
    tokenizer = CheckpointTokenizer.from_dir(builtin_path())
    builder = PromptBuilder(tokenizer, NEEDLE_CONTEXT, vocab_size=tokenizer.vocab_size, sparse=SparseSettings())
    header = "".join(f"  keep {keep:.0%} (kept)" for keep in KEEPS)
    yield f"scored by  depth prompt  whole{header}"
    for depth in DEPTHS:
        right, held, lengths = [0] * (1 + len(KEEPS)), [0] * (1 + len(KEEPS)), []
        for seed in range(count):
            for at, keep in enumerate((None, *KEEPS)):
                source, name = chat(random.Random(seed), depth, tokens // 28)
                limits = Limits(max_tokens=12, sparse_prefill=keep is not None, sparse_keep=keep)
                prompt = builder.build(Submit(1, "needle", source, Sampling(), limits))
                lengths.append(len(prompt.tokens))
                asked = EngineRequest(1, prompt.tokens, max_tokens=12, eos=prompt.eos, sparse=prompt.sparse)
                _, tokens_of, kept = pair.answer(asked)
                right[at] += name in tokenizer.decode(tokens_of)
                seen = [token for start, end in kept for token in prompt.tokens[start:end]]
                held[at] += f"My name is {name}." in tokenizer.decode(seen)
        cells = "".join(f" {found:10} ({there:2})" for found, there in zip(right[1:], held[1:], strict=True))
        yield f"{scorer:9} {depth:6.0%} {statistics.median(lengths):6.0f} {right[0]:6}{cells}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--draft-model", choices=sorted(SHAPES), default="10m", help="the shape of the draft model")
    add_quantize(parser)
    parser.add_argument("--backend", choices=BACKENDS, default="iree", help="of both models")
    parser.add_argument("--prompts", type=at_least(256), nargs="+", default=[2048, 4096, 8192, 16384], help="tokens")
    parser.add_argument("--keep", type=share, default=0.3, help="part of the prompt that is kept")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="prompts of each length")
    parser.add_argument("--needles", type=at_least(0), default=20, help="chats of each depth; 0 leaves them out")
    parser.add_argument("--needle-tokens", type=at_least(64), default=560, help="about so many tokens of a chat")
    add_cache_dir(parser)
    smoke = {"model": "tiny", "draft_model": "tiny", "prompts": [256], "rounds": 1, "needles": 0}
    return parsed(parser, words, smoke=smoke)


def _shapes(args: argparse.Namespace) -> tuple[str, str]:
    return args.model, args.draft_model


def _setup(args: argparse.Namespace, path: Path, slots: int, context: int) -> Setup:
    return Setup(path, args.cache_dir, slots, context, quantize=args.quantize, backend=args.backend)


def run(args: argparse.Namespace) -> None:
    """Print both tables."""
    configure_logging("bench", "warning")
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (SLOTS, max(args.prompts) + ROOM)
    pair = Pair.load(*(_setup(args, make_model(args.cache_dir, each), slots, context) for each in _shapes(args)))
    try:
        for line in times(pair, args.prompts, args.keep, args.rounds):
            print(line, flush=True)
    finally:
        pair.close()
    if args.needles:
        for scorer, path in (("draft", draft_path()), ("itself", builtin_path())):
            built_in = Pair.load(*(_setup(args, each, SLOTS, NEEDLE_CONTEXT) for each in (builtin_path(), path)))
            try:
                for line in needles(built_in, scorer, args.needles, args.needle_tokens):
                    print(line, flush=True)
            finally:
                built_in.close()


if __name__ == "__main__":
    run(arguments())
