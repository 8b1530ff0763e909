"""The IREE engine beside llama.cpp and beside the limit of memory: one command, a table and a plot.

    python bench/engine.py [--quick] [--models 110m 0.5b] [--precisions bf16 int8 int4] [--streams 1 4 8 16 32]

Each figure is the median of --rounds rounds, in which every subject is measured in turn on the same weights. What is
measured while other programs take CPU is measured again; a figure that they disturbed all the same has a "~".

  decode N   generated tokens a second of N sequences together, 64 to 128 positions of context, greedy
  engine       `BatchEngine` in this process; llama-batched-bench (llama-bench for one sequence) is its peer
  HTTP         `baton serve`, one server for all N; llama-server with -np N is its peer; the same random prompts for
               both, timed from when all N requests have text to when the first of them ends
  in turn    the share of the engine's step that memory alone would take, each step beside a read of memory just before
             it: the limit is of the best read, which a shared machine does not always reach
  prefill N  prompt tokens a second of one prompt; llama-bench is the peer
  limit      what memory and arithmetic allow, both measured in the same rounds: the bytes of weights, KV and states
             that a step reads (of a mixture the experts that rows choose at random; states are written as well) over
             the read bandwidth, or its multiply-adds over the CPU's float32 peak if that takes longer ("bound").
             Multiply-adds of integers are not counted, so prefill with quantized weights has no limit

llama.cpp runs the same weights as GGUF: bf16, Q8_0 for int8, Q4_0 for int4; mxfp4 and nvfp4 run without it. Before
anything is timed its greedy tokens are compared with ours, and the run stops if the models are not the same. What the
engine refuses is shown as such.
Build llama.cpp with `python bench/peers/llama_cpp.py`, or give the folder of its programs with --llama-cpp DIR; --alone
runs without. Models, graphs and GGUF files are kept in Baton's cache folder (7 GB for all), results go to --out.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.http import Client, server
from bench.harness.options import SMOKE_SLOTS, add_cache_dir, add_out
from bench.harness.shapes import SHAPES, make_model
from bench.measurement.comparison import HEADER, SUBJECTS, Comparison, write_results
from bench.measurement.limits import BLOCK, PASSES, SMOKE_BLOCK, MemoryReader, Work, multiply_adds, step_bytes
from bench.measurement.markdown import markdown
from bench.measurement.peak import Peak
from bench.measurement.rounds import Others, RefusedError, Series, interleave, refuser
from bench.peers.build import CPU_OPTIONS, PeerError
from bench.peers.llama_cpp import GREEDY, LlamaCpp, complete
from bench.peers.precisions import ALONE, PRECISIONS
from bench.peers.weights.fp4 import to_fp4
from bench.peers.weights.llama_cpp_files import make_file
from bench.peers.weights.to_gguf import ARCHITECTURES, convert
from workers.checkpoints.checkpoint import ModelConfig
from workers.host.topology import usable_cores

CONTEXT = 1024
QUANTIZED = ("int8", "int4", *ALONE)
PROMPT = 64
PREFILLS = (128, 512)


class EngineBenchmark:
    """One model in one precision: the engine and, unless it is None, the peer."""

    def __init__(self, args: argparse.Namespace, model: str, precision: str, peer: LlamaCpp | None) -> None:
        self._args = args
        self._model, self._precision, self._peer = model, precision, None if precision in ALONE else peer
        self._settings = (PRECISIONS | ALONE)[precision]
        self._others = (lambda: 0.0) if args.smoke else Others().share
        self._limits: dict[str, Callable[[], float]] = {}
        self._path = make_model(args.cache_dir, model)
        if self._settings.fp4 is not None:
            self._path = to_fp4(self._path, self._settings.fp4)
        self._config = ModelConfig.from_dir(self._path)
        self._gguf = self._path.with_name(f"{self._path.name}-{self._settings.gguf}.gguf")

    def run(self) -> Iterator[Comparison]:
        """Measure everything, and yield each line as soon as it is complete."""
        if self._peer is not None and not self._gguf.exists():
            self._convert(self._peer)
        slots = max(self._args.streams)
        with ExitStack() as stack:
            try:
                engine, slots, why = self._load(slots)
            except RefusedError as error:
                yield from self._peer_alone(str(error))
                return
            stack.callback(engine.close)
            peak = Peak(usable_cores(), self._args.cache_dir / "graphs")
            stack.callback(peak.close)
            reader = MemoryReader(usable_cores(), SMOKE_BLOCK if self._args.smoke else BLOCK)
            stack.callback(reader.close)
            self._limits = {"bandwidth": lambda: reader.best(PASSES), "peak": peak.measure}
            url = stack.enter_context(server(self._setup(slots)))
            if self._peer is not None:
                self._compare(engine)
            for streams in self._args.streams:
                yield self._decode(engine, reader, Client(url, {}), streams, why if streams > slots else "")
            for length in PREFILLS:
                yield self._prefill(engine, length)

    def _convert(self, peer: LlamaCpp) -> None:
        """Write the GGUF file: by our converter, which quantizes all matrices, or by llama.cpp's where ours does not
        know the family."""
        kind = self._settings.gguf
        if self._config.family in ARCHITECTURES:
            convert(self._path, self._gguf, kind)
        else:
            make_file(self._path, self._gguf, kind, peer)

    def _setup(self, slots: int) -> Setup:
        args, precision = self._args, self._settings
        graphs = args.cache_dir / "graphs"
        return Setup(self._path, graphs, slots, CONTEXT, precision.dtype, precision.quantize, args.device, args.cpu)

    def _load(self, slots: int) -> tuple[Engine, int, str]:
        """The engine with as many slots as it accepts, their number, and why not more. Raises `RefusedError`."""
        why = ""
        for count in sorted({slots, *self._args.streams}, reverse=True):
            try:
                return Engine.load(self._setup(count)), count, why
            except RefusedError as error:
                why = str(error)
        raise RefusedError(why)

    def _compare(self, engine: Engine) -> None:
        """Print how many greedy tokens are the same in both. Raises `PeerError` if the models cannot be the same."""
        assert self._peer is not None
        prompts, equal = [engine.prompt(24) for _ in range(8)], []
        kv = "f32" if self._precision == "f32" else "f16"
        # Flash attention rounds to float16 in llama.cpp, which changes the tokens of a mixture of experts.
        exact = self._peer.with_options("-fa", "off")
        with exact.server(self._gguf, 1, CONTEXT, kv) as url:
            for prompt in prompts:
                pairs = list(zip(engine.complete(prompt, 16), complete(url, list(prompt), 16), strict=True))
                equal.append(next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs)))
        print(f"{self._model} {self._precision}: greedy tokens before the first difference, of 16: {equal}", flush=True)
        rounds = self._config.experts is not None and self._precision != "f32"  # and so may choose other experts
        if not rounds and sum(equal) < self._settings.equal * 16 * len(prompts):
            raise PeerError(f"{self._gguf} is not the same model: llama.cpp's tokens differ from ours")

    def _decode(self, engine: Engine, reader: MemoryReader, client: Client, streams: int, refused: str) -> Comparison:
        work = (streams, PROMPT, self._args.tokens)
        positions = PROMPT + self._args.tokens / 2
        read = step_bytes(self._config, engine.runner).total(streams, positions)
        peer, server_of_peer = self._peer, ExitStack()
        subjects: dict[str, Callable[[], float]] = {}
        if refused:
            subjects |= dict.fromkeys(("engine", "HTTP"), refuser(refused))
        else:
            subjects |= {"engine": lambda: engine.decode(*work), "HTTP": lambda: client.decode(*work)}
            subjects["in turn"] = lambda: engine.memory_share(*work, read, reader.bandwidth)
        with server_of_peer:
            if peer is not None:
                url = server_of_peer.enter_context(peer.server(self._gguf, streams, CONTEXT))
                other = Client(url, GREEDY)
                subjects["llama.cpp"] = lambda: peer.decode(self._gguf, *work)
                subjects["llama-server"] = lambda: other.decode(*work)
            subjects |= self._limits
            ordered = {name: subjects[name] for name in SUBJECTS if name in subjects}
            series = interleave(ordered, self._args.rounds, self._others)
        return self._line("decode", streams, series, Work(read, self._multiply_adds(streams, positions, streams)))

    def _prefill(self, engine: Engine, length: int) -> Comparison:
        peer = self._peer
        subjects: dict[str, Callable[[], float]] = {"engine": lambda: engine.prefill(length)}
        if peer is not None:
            subjects["llama.cpp"] = lambda: peer.prefill(self._gguf, length)
        engine.prefill(length)  # the first call of a length may load its graph
        series = interleave(subjects | self._limits, max(3, self._args.rounds), self._others)
        if engine.runner.capabilities.quantization:
            return self._line("prefill", length, series)  # its multiply-adds are not counted
        each = step_bytes(self._config, engine.runner)
        read = each.matrices(length) + each.cache(1, length)
        return self._line("prefill", length, series, Work(read, self._multiply_adds(length, length / 2, 1)))

    def _multiply_adds(self, rows: int, positions: float, sampled: int) -> float:
        """0 for quantized weights, which are multiplied as integers."""
        return 0.0 if self._precision in QUANTIZED else multiply_adds(self._config, rows, positions, sampled)

    def _peer_alone(self, reason: str) -> Iterator[Comparison]:
        for streams in self._args.streams:
            subjects = dict.fromkeys(("engine", "HTTP"), refuser(reason))
            if self._peer is not None:
                subjects["llama.cpp"] = partial(self._peer.decode, self._gguf, streams, PROMPT, self._args.tokens)
            yield self._line("decode", streams, interleave(subjects, self._args.rounds))

    def _line(self, what: str, count: int, series: dict[str, Series], work: Work | None = None) -> Comparison:
        return Comparison(self._model, self._precision, what, count, series, work)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=list(SHAPES), default=["110m", "0.5b"], help="the shapes, of random weights"
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=[*PRECISIONS, *ALONE],
        default=["bf16", "int8", "int4"],
        help="of the weights",
    )
    parser.add_argument("--streams", nargs="+", type=at_least(1), default=[1, 4, 8, 16, 32], help="sequences at once")
    parser.add_argument("--tokens", type=at_least(1), default=64, help="generated by each sequence")
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        help="runs of each figure, ours and llama.cpp's in turn; medians are printed",
    )
    parser.add_argument("--device", default="", help="of the IREE backend; empty is its default")
    parser.add_argument(
        "--cpu",
        choices=list(CPU_OPTIONS),
        default="host",
        help="whose instructions both use; llama.cpp must be built for it",
    )
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama-server and llama-bench")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument(
        "--quick", action="store_true", help="unless given: bf16 at 1 and 8 streams, one round, 32 tokens"
    )
    add_cache_dir(parser)
    out = add_out(parser, "engine")
    quick = {"precisions": ["bf16"], "streams": [1, 8], "tokens": 32, "rounds": 1}
    smoke = quick | out | {"models": ["tiny"], "streams": [1, SMOKE_SLOTS], "tokens": 900}
    args = parsed(parser, words, smoke=smoke, quick=quick)
    args.alone |= args.smoke and args.llama_cpp is None
    return args


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end as well
    lines: list[Comparison] = []
    try:
        peer = None if args.alone else LlamaCpp.find(args.llama_cpp, usable_cores(), args.cpu)
        for model in args.models:
            for precision in args.precisions:
                for line in EngineBenchmark(args, model, precision, peer).run():
                    lines.append(line)
                    print(markdown(HEADER, [line.cells()]).splitlines()[-1], flush=True)
    except PeerError as error:
        sys.exit(f"{error} (--alone measures without llama.cpp)")
    finally:
        if lines:
            write_results(lines, args.out)
    print(f"\n{markdown(HEADER, [line.cells() for line in lines])}\n\nwritten to {args.out}")
    refused = {series.refused for line in lines for series in line.series.values() if series.refused}
    if args.smoke and refused:
        sys.exit(f"refused: {'; '.join(sorted(refused))}")


if __name__ == "__main__":
    main()
