"""Baton beside other engines for CPUs, in turn in one run: one command, a table with ratios, and plots.

    python bench/peers/rivals.py [--peers llama.cpp ik_llama.cpp openvino vllm onnxruntime] [--models 0.5b]
        [--precisions bf16 int8 int4] [--streams 1 4 8 16 32] [--prefills 32 128 512 2048 4096]
        [--contexts 8192 32512] [--cpu avx2] [--add]

Each engine loads the same weights in a process of its own, converted to its format by its own converter where it has
one, and computes with the same number of threads. In each of --rounds rounds all are measured in turn, with the same
random prompts of token ids, greedily, for a fixed number of tokens. Figures are medians; the number in brackets is
Baton's figure over the peer's, the median over the rounds, and above 1 Baton is faster. What an engine cannot do is
shown with the reason. A figure that other processes disturbed all the same has a "~".

  decode N     tokens a second of N sequences together, over the steps in which all of them get a token
  prefill N    tokens a second of one prompt, from its submission to its first token
  context N    tokens a second of one sequence after a prompt of N tokens
  cold         with empty caches (Baton's graphs, OpenVINO's and vLLM's compiled models), and then with those that this
               start has left: seconds from the start of the process to the first token of a prompt of 64 tokens, and
               tokens a second of the bursts of N requests that follow for --cold-seconds; files are in memory

llama.cpp and ik_llama.cpp are measured by llama-bench and llama-batched-bench, which do not sample, and cold by
llama-server. Install the peers with `python bench/peers/install.py`; one that is missing is shown as not measured.
--add keeps the figures of earlier runs in --out, so that a table can be measured in pieces; each peer's ratio is to
Baton in its own run, and Baton's figure is that of the run that other processes disturbed least. Models, graphs and
converted weights are kept in Baton's cache folder (10 GB for 0.5b).
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_out
from bench.harness.shapes import SHAPES, make_model
from bench.measurement.machine import cpu_model
from bench.measurement.rounds import Others, RefusedError, Series, interleave, refuser
from bench.measurement.standings import (
    OURS,
    SECONDS,
    Standing,
    added,
    machine_fields,
    read_standings,
    table,
    write_standings,
)
from bench.peers.baton import BatonPeer
from bench.peers.catalogue import PEERS
from bench.peers.peer import FirstSeconds, Prompts, Rival, RivalModel, Session, cold_start
from bench.peers.precisions import PRECISIONS
from workers.host.topology import usable_cores

PROMPT = 64
COMPARED, SAME = 8, 16
"""Prompts, and tokens after each, that are compared with Baton's."""
MARGIN = 8
"""Positions of a slot beyond the longest prompt or answer."""


Figure = tuple[str, int, Callable[[Session], float]]
"""Name of a figure, its number of streams or tokens, and the function that measures it."""


class DifferentModelError(Exception):
    """Raised when a peer's tokens are not those of the same model."""


class Rivalry:
    """One model in one precision: Baton and its peers."""

    def __init__(self, args: argparse.Namespace, name: str, precision: str, subjects: Mapping[str, Rival]) -> None:
        self._args, self._name, self._precision, self._subjects = args, name, precision, subjects
        self._others: Callable[[], float] = (lambda: 0.0) if args.smoke else Others().share
        self._path = make_model(args.cache_dir, name)
        self._model = self._sized(max([1, *args.streams, *args.cold]), max([*args.prefills, PROMPT + args.tokens]))

    def run(self) -> Iterator[Standing]:
        """Measure everything, and yield each line when it is complete. Raises `DifferentModelError`."""
        refused = {name: self._prepared(peer) for name, peer in self._subjects.items()}
        args = self._args
        decodes: list[Figure] = [("decode", n, partial(_decode, streams=n, tokens=args.tokens)) for n in args.streams]
        prefills: list[Figure] = [("prefill", n, partial(_prefill, length=n)) for n in args.prefills]
        yield from self._warm(self._model, decodes + prefills, refused)
        # In processes of their own, whose KV cache holds one sequence.
        deep = self._sized(1, max([0, *args.contexts]) + args.tokens)
        contexts: list[Figure] = [
            ("context", n, partial(_decode_after, prompt=n, tokens=args.tokens)) for n in args.contexts
        ]
        yield from self._warm(deep, contexts, refused)
        for streams in args.cold:
            yield from self._cold(streams, refused)

    def _sized(self, slots: int, longest: int) -> RivalModel:
        """The model with a context, of which Baton compiles few, that holds `longest` positions."""
        args = self._args
        context = -(-(longest + MARGIN) // args.context) * args.context
        return RivalModel(self._path, self._precision, args.cpu, usable_cores(), slots, context, args.cache_dir)

    def _prepared(self, peer: Rival) -> str:
        """Convert the weights. Returns why the peer cannot be measured, or nothing."""
        if reason := peer.refusal(self._precision, self._args.cpu):
            return reason
        try:
            peer.prepare(self._model)
        except RefusedError as error:
            return str(error)
        return ""

    def _warm(self, model: RivalModel, figures: Sequence[Figure], refused: Mapping[str, str]) -> Iterator[Standing]:
        """Measure in processes that have loaded the model."""
        if not figures:
            return
        refused = dict(refused)
        sessions: dict[str, Session] = {}
        with ExitStack() as stack:
            for name, peer in self._subjects.items():
                if not refused[name]:
                    try:
                        sessions[name] = stack.enter_context(closing(peer.start(model)))
                    except RefusedError as error:
                        refused[name] = str(error)
            self._compare(sessions)
            for what, count, measure in figures:
                calls = {
                    name: partial(measure, sessions[name]) if name in sessions else refuser(refused[name])
                    for name in self._subjects
                }
                yield self._line(what, count, interleave(calls, self._args.rounds, self._others))

    def _compare(self, sessions: Mapping[str, Session]) -> None:
        """Print how many greedy tokens of each peer are Baton's. Raises `DifferentModelError` if the models differ."""
        if OURS not in sessions:
            return
        prompts = Prompts(2).batch(COMPARED, 24)
        ours = [sessions[OURS].complete(prompt, SAME) for prompt in prompts]
        for name, session in sessions.items():
            if name == OURS:
                continue
            try:
                theirs = [session.complete(prompt, SAME) for prompt in prompts]
            except RefusedError as error:
                print(f"{self._name} {self._precision}: greedy tokens of {name} are not compared: {error}", flush=True)
                continue
            equal = [_equal(one, other) for one, other in zip(ours, theirs, strict=True)]
            print(
                f"{self._name} {self._precision}: greedy tokens before {name} differs, of {SAME}: {equal}", flush=True
            )
            if sum(equal) < PRECISIONS[self._precision].equal * SAME * len(prompts):
                raise DifferentModelError(f"{name} does not run the same model: its tokens differ from Baton's")

    def _cold(self, streams: int, refused: Mapping[str, str]) -> Iterator[Standing]:
        series = {kind: {name: Series(refused=refused[name]) for name in self._subjects} for kind in COLD}
        for _ in range(self._args.rounds):
            for name, peer in self._subjects.items():
                if not refused[name]:
                    self._cold_round(peer, streams, {kind: series[kind][name] for kind in COLD})
        for kind in COLD:
            yield self._line(kind, streams, series[kind])

    def _cold_round(self, peer: Rival, streams: int, series: Mapping[str, Series]) -> None:
        """Start with empty caches, and then with those that this start has left."""
        caches = Path(tempfile.mkdtemp(prefix="cold-", dir=self._args.cache_dir))
        try:
            for first_token, rate in (COLD[:2], COLD[2:]):
                self._others()
                found = self._cold_start(peer, streams, caches)
                share = self._others()
                for name, value in ((first_token, found.first_token_s), (rate, found.tokens_per_s)):
                    series[name].values.append(value)
                    series[name].others.append(share)
        except RefusedError as error:
            for one in series.values():
                one.refused = str(error)
        finally:
            shutil.rmtree(caches)

    def _cold_start(self, peer: Rival, streams: int, caches: Path) -> FirstSeconds:
        start = partial(peer.start, self._model, caches)
        return cold_start(start, streams, PROMPT, self._args.cold_tokens, self._args.cold_seconds, time.perf_counter)

    def _line(self, what: str, count: int, series: dict[str, Series]) -> Standing:
        return Standing(self._name, self._precision, self._args.cpu, what, count, series)


COLD = (
    f"empty caches, {SECONDS}, then streams",
    "empty caches, tokens/s of streams",
    f"filled caches, {SECONDS}, then streams",
    "filled caches, tokens/s of streams",
)


def _equal(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = list(zip(ours, theirs, strict=True))
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))


def _decode(session: Session, streams: int, tokens: int) -> float:
    return session.decode(streams, PROMPT, tokens)


def _decode_after(session: Session, prompt: int, tokens: int) -> float:
    return session.decode(1, prompt, tokens)


def _prefill(session: Session, length: int) -> float:
    return session.prefill(length)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="measured beside Baton")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["0.5b"], help="the shapes")
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "int8", "int4"], default=["bf16", "int8", "int4"],
                        help="of the weights")  # fmt: skip
    parser.add_argument("--streams", nargs="*", type=at_least(1), default=[1, 4, 8, 16, 32], help="sequences at once")
    parser.add_argument("--prefills", nargs="*", type=at_least(1), default=[32, 128, 512, 2048, 4096],
                        help="prompt tokens")  # fmt: skip
    parser.add_argument(
        "--contexts", nargs="*", type=at_least(1), default=[], help="prompt tokens before a decode step"
    )
    parser.add_argument("--cold", nargs="*", type=at_least(1), default=[8], help="streams of cold starts")
    parser.add_argument("--cold-seconds", type=above_zero, default=5.0, help="of bursts after the first token")
    parser.add_argument("--cold-tokens", type=at_least(1), default=16, help="of each request of a burst")
    parser.add_argument("--tokens", type=at_least(16), default=48, help="generated by each sequence")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="runs of each figure, in turn")
    parser.add_argument("--cpu", choices=["host", "avx2"], default="host", help="whose instructions all use")
    parser.add_argument("--context", type=at_least(1), default=1024, help="positions of slots are a multiple of this")
    parser.add_argument("--add", action="store_true", help="keep the lines of earlier runs in --out")
    add_cache_dir(parser)
    smoke = {
        **add_out(parser, "rivals"),
        "models": ["tiny"],
        "precisions": ["bf16"],
        "peers": [],
        "streams": [SMOKE_SLOTS],
        "prefills": [128],
        "contexts": [64],
        "cold": [SMOKE_SLOTS],
        "cold_seconds": 0.1,
        "cold_tokens": 4,
        "tokens": 16,
        "rounds": 1,
        "context": SMOKE_CONTEXT,
    }
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children end as well
    machine = machine_fields(cpu_model(), usable_cores())
    subjects: dict[str, Rival] = {OURS: BatonPeer()}
    subjects |= {PEERS[key].name: PEERS[key] for key in args.peers}
    try:
        before = read_standings(args.out, machine) if args.add else []
    except ValueError as error:
        sys.exit(str(error))
    lines: list[Standing] = []
    try:
        for name in args.models:
            for precision in args.precisions:
                for line in Rivalry(args, name, precision, subjects).run():
                    lines.append(line)
                    print(table([line]).splitlines()[2], flush=True)
    except DifferentModelError as error:
        sys.exit(str(error))
    finally:
        if lines:
            about = [f"{name}: {peer.about}" for name, peer in subjects.items()]
            write_standings(added(before, lines), machine, about, args.out)
    print(f"\nmeasured on {machine['cpu']}\n\n{table(lines)}\n\nwritten to {args.out}")
    if args.smoke and any(series.refused for line in lines for series in line.series.values()):
        sys.exit("something was not measured")


if __name__ == "__main__":
    main()
