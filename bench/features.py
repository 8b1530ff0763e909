"""Each feature beside the same server without it, on both backends.

    python bench/features.py [--parts equality,speculation,first,gap,cost,sparse] [--backends iree,mlx]
        [--requests 1000] [--model 110m] [--prompt 2048] [--gap-prompts 100,4096,16384] [--rounds 5]

Each part runs in a process of its own, on one backend after the other:

  equality     --requests random requests to a plain server, without speculation and prefix cache, and then to one with
               both, a prefix tier and a standby, whose active worker is killed after each 25 answers; every answer is
               compared in ids, text, finish reasons and counts (bench/feature_parts/equality.py)
  speculation  tokens a second and accepted drafts of answers that quote, repeat keys, edit or do not repeat, for 1
               and 8 streams (bench/overhead/speculation.py)
  first        the time to the first token after a system prompt of --prompt tokens: cold, warm, after other requests,
               after kills and restarts, on a sibling (bench/overhead/prefix_tiers.py); on MLX beside mlx-lm with its
               own prompt cache and without
  gap          the gap of streams whose worker is killed, with a standby, by tokens of the prompt, with the tier and
               without it (bench/overhead/prefix_tiers.py)
  cost         the cost of the tier where it cannot gain (bench/overhead/prefix_tiers.py)
  sparse       the time to the first token of sparse prefill, and the answers that it loses
               (bench/overhead/sparse_prefill.py)

The built-in model answers in `equality` and in `sparse`, a shape with random weights in the others. The exit status is
1 if an answer differs, or if no worker was killed, no draft accepted or no prefix taken from the tier, since nothing
was shown then.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.feature_parts import equality
from bench.harness.command_line import at_least, command_line, levels, parsed
from bench.harness.options import BACKENDS, SMOKE_CONTEXT, add_cache_dir, add_model
from bench.harness.shapes import make_model
from bench.overhead import prefix_tiers, sparse_prefill, speculation

MODES = ["--smoke"]
SMOKE_PROMPT = 64
ROOM = 1024
"""Positions after the longest prompt of `gap`, for the answer."""


def compare_answers(args: argparse.Namespace, backend: str) -> None:
    """The part `equality`."""
    model = str(make_model(args.cache_dir, "tiny")) if args.smoke else ""
    found = equality.measure(
        backend, args.requests, model=model, cache=args.cache_dir / "graphs", context=SMOKE_CONTEXT, seed=args.seed
    )
    print(
        f"{found.requests} requests, {found.killed} workers killed, {found.interrupted} sequences interrupted, "
        f"{found.accepted} of {found.drafted} drafted tokens accepted, "
        f"{found.tier_tokens} prompt tokens from the tier: "
        f"{len(found.problems)} answers differ ({found.seconds[0]:.0f} s plain, {found.seconds[1]:.0f} s with features)"
    )
    for problem in found.problems:
        print(f"  {problem}")
    if found.problems or not (found.killed and found.tier_tokens and (found.accepted or args.smoke)):
        sys.exit(1)


def measure_speculation(args: argparse.Namespace, backend: str) -> None:
    """The part `speculation`."""
    words = [*_common(args, backend), "--rounds", str(args.rounds)]
    speculation.run(speculation.arguments([*words, *(MODES if args.smoke else ("--streams", "1", "8"))]))


def measure_first(args: argparse.Namespace, backend: str) -> None:
    """The part `first`, and what mlx-lm itself takes."""
    _measure_tiers("first", args, backend)
    if backend == "mlx":
        from bench.feature_parts import mlx_lm_cache  # only here: not every machine has it

        rounds = 1 if args.smoke else args.rounds
        made, prompt = make_model(args.cache_dir, args.model), SMOKE_PROMPT if args.smoke else args.prompt
        cold, warm = mlx_lm_cache.measure(made, prompt, prefix_tiers.QUESTION, rounds)
        print(f"  mlx-lm, cold, without a server    {cold:10.1f}")
        print(f"  mlx-lm, its prompt cache          {warm:10.1f}{cold / warm:8.1f} x")


def measure_gap(args: argparse.Namespace, backend: str) -> None:
    """The part `gap`."""
    _measure_tiers("gap", args, backend)


def measure_cost(args: argparse.Namespace, backend: str) -> None:
    """The part `cost`."""
    _measure_tiers("cost", args, backend)


def measure_sparse(args: argparse.Namespace, backend: str) -> None:
    """The part `sparse`."""
    words = [*_common(args, backend), *(MODES if args.smoke else ["--rounds", str(args.rounds)])]
    sparse_prefill.run(sparse_prefill.arguments(words))


PARTS: Mapping[str, Callable[[argparse.Namespace, str], None]] = {
    "equality": compare_answers,
    "speculation": measure_speculation,
    "first": measure_first,
    "gap": measure_gap,
    "cost": measure_cost,
    "sparse": measure_sparse,
}


def _common(args: argparse.Namespace, backend: str) -> list[str]:
    return ["--backend", backend, "--model", args.model, "--cache-dir", str(args.cache_dir)]


def _measure_tiers(part: str, args: argparse.Namespace, backend: str) -> None:
    words = [*_common(args, backend), "--parts", part]
    if args.smoke:
        words += MODES
    else:
        gaps = ",".join(map(str, args.gap_prompts))
        longest = max(args.prompt, *args.gap_prompts) if part == "gap" else args.prompt
        words += ["--prompt", str(args.prompt), "--gap-prompts", gaps, "--rounds", str(args.rounds)]
        words += ["--context", str(longest + ROOM)]
    prefix_tiers.run(prefix_tiers.arguments(words))


def _one_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """The `type` of an option that takes names, separated by commas."""

    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return found

    return names


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parts = _one_of(list(PARTS))
    parser.add_argument("--parts", type=parts, default=",".join(PARTS), help="what to measure, separated by commas")
    parser.add_argument("--backends", type=_one_of(BACKENDS), default=",".join(BACKENDS), help="separated by commas")
    parser.add_argument("--requests", type=at_least(1), default=1000, help="requests of `equality`")
    parser.add_argument("--seed", type=int, default=17, help="of the requests and kills of `equality`")
    parser.add_argument("--prompt", type=at_least(1), default=2048, help="tokens of the system prompt of `first`")
    parser.add_argument("--gap-prompts", type=levels, default="100,4096,16384", help="tokens of prompts, by commas")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of each measurement; medians are printed")
    add_model(parser, "110m")
    add_cache_dir(parser)
    smoke = {"parts": "equality", "backends": "iree", "requests": 60, "model": "tiny", "rounds": 1}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    failed = False
    for part in args.parts:
        for backend in args.backends:
            print(f"\n{part}, {backend}", flush=True)
            child = multiprocessing.get_context("spawn").Process(target=PARTS[part], args=(args, backend))
            child.start()  # the threads of one runner would share the CPUs with those of the next one
            child.join()
            failed |= bool(child.exitcode)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
