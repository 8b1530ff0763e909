"""Each feature beside the same server without it, on both backends, and beside other engines that have it.

    python bench/features.py [--parts equality,speculation,peers,first,gap,cost,sparse,needles] [--backends iree,mlx]
        [--requests 1000] [--model 110m] [--prompt 2048] [--gap-prompts 100,4096,16384] [--rounds 5]
        [--peers llama.cpp,mlx-lm] [--draft-model 10m] [--max-tokens 200]

Each part runs in a process of its own, on one backend after the other:

  equality     --requests random requests to a plain server, without speculation and prefix cache, and then to one with
               both, a prefix tier and a standby, whose active worker is killed after each 25 answers; every answer is
               compared in ids, text, finish reasons and counts (bench/feature_parts/equality.py)
  speculation  tokens a second and accepted drafts of answers that quote, repeat keys, edit or do not repeat, for 1
               and 8 streams (bench/overhead/speculation.py)
  peers        tokens a second of one stream without drafts, with look-ups in the prompt and with a draft model: Baton,
               on IREE beside llama-server (--spec-type ngram-simple and draft-simple), on MLX beside mlx-lm, which has
               draft models alone (bench/feature_parts/speculating_peers.py)
  first        the time to the first token after a system prompt of --prompt tokens: cold, warm, after other requests,
               after kills and restarts, on a sibling (bench/overhead/prefix_tiers.py); on MLX beside mlx-lm with its
               own prompt cache and without, on IREE beside llama-server, from its slot and from a slot's file
  gap          the gap of streams whose worker is killed, with a standby, by tokens of the prompt, with the tier and
               without it (bench/overhead/prefix_tiers.py)
  cost         the cost of the tier where it cannot gain (bench/overhead/prefix_tiers.py)
  sparse       the time to the first token of sparse prefill, and the answers that it loses
               (bench/overhead/sparse_prefill.py)
  needles      the answers that sparse prefill loses at 2,048 to 16,384 tokens (bench/overhead/needles.py)

The built-in model answers in `equality` and in `sparse`, constructed ones in `peers` and `needles`, a shape with random
weights in the others. llama.cpp is left out where it is not built, and with --smoke. The exit status is
1 if an answer differs, or if no worker was killed, no draft accepted or no prefix taken from the tier, since nothing
was shown then.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.feature_parts import equality, llama_cpp_cache, speculating_peers
from bench.harness.command_line import at_least, command_line, levels, parsed
from bench.harness.options import BACKENDS, SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model
from bench.harness.shapes import SHAPES, make_model
from bench.overhead import needles, prefix_tiers, sparse_prefill, speculation
from bench.peers.build import PeerError
from bench.peers.llama_cpp import LlamaCpp
from workers.host.topology import usable_cores

MODES = ["--smoke"]
PEERS = ("llama.cpp", "mlx-lm")
SMOKE_PROMPT = 64
PEER_SLOTS = 8
"""Slots of Baton in `peers`."""
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


def measure_peers(args: argparse.Namespace, backend: str) -> None:
    """The part `peers`."""
    shape, small = ("tiny", "") if args.smoke else (args.model, args.draft_model)
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (PEER_SLOTS, 2 * ROOM)
    with ExitStack() as stack:
        engines = {
            f"Baton {backend}": speculating_peers.baton(stack, args.cache_dir, shape, small, backend, context, slots)
        }
        if backend == "mlx" and "mlx-lm" in args.peers:
            engines["mlx-lm"] = speculating_peers.mlx_lm(args.cache_dir, shape, small)
        if backend == "iree" and "llama.cpp" in args.peers and not args.smoke:
            try:
                threads = usable_cores()
                engines["llama.cpp"] = speculating_peers.llama_cpp(
                    stack, args.cache_dir, shape, small, threads, context
                )
            except PeerError as error:
                print(f"  llama.cpp is left out: {error}")
        for line in speculating_peers.table(engines, args.max_tokens, args.rounds):
            print(line, flush=True)


def measure_first(args: argparse.Namespace, backend: str) -> None:
    """The part `first`, and what mlx-lm and llama.cpp themselves take."""
    _measure_tiers("first", args, backend)
    if backend == "iree" and "llama.cpp" in args.peers and not args.smoke:
        try:
            _measure_llama_cpp(args)
        except PeerError as error:
            print(f"  llama.cpp is left out: {error}")
    if backend == "mlx" and "mlx-lm" in args.peers:
        from bench.feature_parts import mlx_lm_cache  # only here: not every machine has it

        rounds = 1 if args.smoke else args.rounds
        made, prompt = make_model(args.cache_dir, args.model), SMOKE_PROMPT if args.smoke else args.prompt
        cold, warm = mlx_lm_cache.measure(made, prompt, prefix_tiers.QUESTION, rounds)
        print(f"  mlx-lm, cold, without a server    {cold:10.1f}")
        print(f"  mlx-lm, its prompt cache          {warm:10.1f}{cold / warm:8.1f} x")


def _measure_llama_cpp(args: argparse.Namespace) -> None:
    """Measure llama-server. Raises `PeerError` if it is not built."""
    from bench.peers.weights.to_gguf import convert  # only here: it ends a process without gguf

    programs, made = LlamaCpp.find(None, usable_cores()), make_model(args.cache_dir, args.model)
    file = made.with_name(f"{made.name}-bf16.gguf")
    if not file.exists():
        convert(made, file)
    found = llama_cpp_cache.measure(programs, file, args.prompt, prefix_tiers.QUESTION, args.rounds, args.prompt + ROOM)
    cold = found[llama_cpp_cache.COLD]
    for name, middle in found.items():
        print(f"  {f'llama.cpp, {name}':<46}{middle:10.1f}{cold / middle:8.1f} x")


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


def measure_needles(args: argparse.Namespace, backend: str) -> None:
    """The part `needles`."""
    words = ["--backend", backend, "--cache-dir", str(args.cache_dir), *(MODES if args.smoke else ())]
    needles.run(needles.arguments(words))


PARTS: Mapping[str, Callable[[argparse.Namespace, str], None]] = {
    "equality": compare_answers,
    "speculation": measure_speculation,
    "peers": measure_peers,
    "first": measure_first,
    "gap": measure_gap,
    "cost": measure_cost,
    "sparse": measure_sparse,
    "needles": measure_needles,
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
    parser.add_argument("--peers", type=_one_of(PEERS), default=",".join(PEERS), help="other engines, by commas")
    parser.add_argument("--draft-model", choices=sorted(SHAPES), default="10m", help="the draft model of `peers`")
    parser.add_argument("--max-tokens", type=at_least(8), default=200, help="tokens of an answer of `peers`")
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
