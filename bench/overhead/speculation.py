"""Tokens a second with speculative decoding and without, by how much of the answer repeats what came before.

    python bench/overhead/speculation.py [--model 110m] [--quantize int4] [--backend mlx] [--streams 1 4 8]
        [--rounds 5]
    python bench/overhead/speculation.py --part cannot-gain [--model builtin] [--seconds 10]

The weights are random, so the answers of `gain` are given: a mask leaves one token at each position. `quote` copies
passages of 96 tokens from a prompt of 512, with 8 tokens between them; `records` repeats 12 of 18 tokens, like objects
with the same keys; `edit` copies the prompt with every 24th token changed; `chat` has random tokens of 200 kinds, which
repeat by chance only. `rag`, `code` and `json` are text: quoted passages of the docs, code with two names changed, and
JSON by a schema, with the masks and the forced tokens of its grammar. Each is measured with and without drafts in turn,
in the same process; figures are medians over the rounds, the ratio that of pairs.

`cannot-gain` has free answers, sampled at temperature 1: chats of the built-in model, or what random weights write. An
engine with drafts and one without take turns of some steps on the same runner; the ratios are of their time and of
their processor time, with bounds of 95 % confidence.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.dictated_answers import LOADS, DictatedAnswers
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_backend, add_cache_dir, add_quantize
from bench.harness.paired_engines import TURN_S, HalfRunner, Ratio, Side, compared, take_turns
from bench.harness.settled import load_settled
from bench.harness.shapes import SHAPES, TOKENS, make_model
from models import builtin_path
from protocol.events import Gauges
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.speculation.speculator import Speculator
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

CONTEXT = 1024
SLOTS = 8
BUILTIN = "builtin"
PARTS = ("gain", "cannot-gain")
QUESTIONS = (
    "Hello! Who are you?",
    "What is the capital of France? Tell me more.",
    "Please tell me about the weather today.",
    "Tell me a story about a dog.",
    "What is 3 + 4?",
    "My name is Anna. What is my name?",
)


def rate(
    runner: Runner,
    answers: DictatedAnswers,
    load: str,
    streams: int,
    tokens: int,
    speculator: Speculator | None,
    seed: int,
) -> tuple[float, Gauges]:
    """Return the tokens a second of streams that all decode."""
    engine = BatchEngine(
        runner, max_queue=0, step_tokens=1 << 20, prefixes=PrefixPolicy(enabled=False), speculator=speculator
    )
    randomness = random.Random(seed)
    for stream in range(streams):
        prompt, constraint, example = answers.make(load, tokens, randomness)
        engine.submit(
            EngineRequest(stream, prompt, Sampling(), tokens, constraint=constraint, grammar=load, example=example)
        )
    begun: set[int] = set()
    while len(begun) < streams:
        begun |= {token.stream for token in engine.step().tokens}
    before, began = engine.gauges().decode_tokens, time.perf_counter()
    while not engine.idle:
        if failures := engine.step().failures:
            raise RuntimeError(failures[0].text)
    return (engine.gauges().decode_tokens - before) / (time.perf_counter() - began), engine.gauges()


def measure(runner: Runner, answers: DictatedAnswers, load: str, streams: int, tokens: int, rounds: int) -> str:
    """Return a line of the table."""
    pairs, gauges = [], Gauges()
    speculator = Speculator(runner.capabilities, fits=runner.fits)
    for seed in range(-1, rounds):
        off, _ = rate(runner, answers, load, streams, tokens, None, seed)
        on, gauges = rate(runner, answers, load, streams, tokens, speculator, seed)
        if seed >= 0:  # the first ones may wait for graphs
            pairs.append((off, on))
        else:
            runner.settle()
    return f"{load:8} {streams:3} {compared(pairs, gauges)}"


def free_chats(model: str, tokens: int) -> Callable[[int], EngineRequest]:
    """Return what makes the request of a stream, whose answer is sampled."""
    tokenizer = CheckpointTokenizer.from_dir(builtin_path(), parse_special=False)
    eos = frozenset(tokenizer.eos_ids) if model == BUILTIN else frozenset()

    def request(stream: int) -> EngineRequest:
        randomness = random.Random(stream)
        prompt = randomness.choices(TOKENS, k=128)
        if model == BUILTIN:
            question = randomness.choice(QUESTIONS)
            prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", special=True)
        return EngineRequest(stream, tuple(prompt), Sampling(temperature=1.0, seed=stream), tokens, eos=eos)

    return request


def measure_loss(runner: Runner, model: str, streams: int, tokens: int, seconds: float) -> str:
    """Return a line of the table. The runner has slots for two engines."""
    slots = runner.capabilities.slots // 2
    halves = HalfRunner(runner, 0, slots), HalfRunner(runner, slots, slots)
    request = free_chats(model, tokens)
    off = Side(halves[0], None, streams, request)
    on = Side(halves[1], Speculator(halves[1].capabilities, fits=halves[1].fits), streams, request)
    take_turns(off, on, seconds / 10, TURN_S)
    runner.settle()
    pairs = take_turns(off, on, seconds, TURN_S)
    ratios = [Ratio.of(pairs, field) for field in ("seconds", "cpu_s")]
    shown = "  ".join(f"{each.value:6.3f} {each.low:6.3f} {each.high:6.3f}" for each in ratios)
    per_step = sum(off.seconds for off, _ in pairs) / sum(off.tokens for off, _ in pairs) * streams
    return f"{streams:3} {1e3 * per_step:9.3f}  {shown} {on.gauges.draft_tokens:8}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=["gain"], help="what is measured")
    parser.add_argument(
        "--model",
        choices=[BUILTIN, *sorted(SHAPES)],
        default="110m",
        help="the built-in one, or a shape of random weights",
    )
    add_quantize(parser)
    add_backend(parser)
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 4, 8], help="at once")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="what the answers repeat")
    parser.add_argument("--max-tokens", type=at_least(2), default=200, help="tokens of an answer")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each, in turn; medians are printed")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="of each figure of `cannot-gain`")
    add_cache_dir(parser)
    smoke = {"part": list(PARTS), "model": "tiny", "streams": [1], "max_tokens": 40, "rounds": 1, "seconds": 0.1}
    return parsed(parser, words, smoke=smoke)


def setup(args: argparse.Namespace, slots: int) -> Setup:
    """Return the settings of a runner; those of a smoke test have no other slots than those of other scripts."""
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (slots, CONTEXT)
    path = builtin_path() if args.model == BUILTIN else make_model(args.cache_dir, args.model)
    return Setup(path, args.cache_dir, slots, context, quantize=args.quantize, backend=args.backend)


def measure_gains(args: argparse.Namespace) -> None:
    spec = setup(args, SLOTS).spec()
    with closing(load_settled(spec)) as runner:
        print("load     streams  off tok/s   on tok/s    ratio  drafted  accepted")
        with closing(DictatedAnswers(Path(spec.model_path), runner.capabilities.vocab_size)) as answers:
            for load in args.loads:
                for streams in args.streams:
                    print(measure(runner, answers, load, streams, args.max_tokens, args.rounds), flush=True)


def measure_losses(args: argparse.Namespace) -> None:
    with closing(load_settled(setup(args, 2 * SLOTS).spec())) as runner:
        print("streams  step ms  on/off time, low, high  on/off CPU, low, high   drafted")
        for streams in args.streams:
            print(measure_loss(runner, args.model, streams, args.max_tokens, args.seconds), flush=True)


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    configure_logging("bench", "warning")
    if "gain" in args.part:
        measure_gains(args)
    if "cannot-gain" in args.part:
        measure_losses(args)


def main() -> None:
    run(arguments())


if __name__ == "__main__":
    main()
