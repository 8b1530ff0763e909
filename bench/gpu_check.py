"""The IREE runner on a GPU: whether it works, and how fast it is beside JAX on the same one, within ten minutes.

    python bench/gpu_check.py [--device cuda] [--shapes 110m] [--dtype bfloat16] [--minutes 10]
    python bench/gpu_check.py --compile-only [cuda hip vulkan cuda:sm_90 ...]

  doctor   a matrix product on the device, as `baton doctor` has it computed
  gate     small models of three families (greedy and seeded requests through 8 slots, against the same requests alone;
           logits against JAX's on the CPU)
  memory   bytes a second that the device reads, the limit of a decode step
  engine   a model of a shape of bench/engine.py: its logits, steps of the runner alone, decoding through the engine, a
           prompt
  jax      the same traced graphs executed by JAX, where it sees the device (pip install 'jax[cuda12]')

Every stage is a process of its own with a time limit, and ends with PASS, SKIP or FAIL and the reason; none stops the
others. A table comes at the end, and the exit status is 1 if a stage failed. On a CPU `--device generic-task --shapes
tiny` rehearses all of it, and `--smoke` does in seconds. With `--compile-only` every graph of a small model is compiled
for these kinds of GPUs, which needs none. With an architecture, such as cuda:sm_90, the graphs of all stages are
compiled into `--cache-dir`: the same checkout, with the same versions of IREE and JAX and a copy of that folder, then
compiles next to nothing on the GPU's machine.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.gpu import stages as child
from bench.gpu.compile_only import TARGETS, check_compiles, target_of
from bench.gpu.stages import GPU_MEMORY_BYTES, SMOKE, Result, StageSizes, StageSpec
from bench.harness.command_line import above_zero, command_line, parsed
from bench.harness.options import add_cache_dir
from bench.harness.shapes import SHAPES
from bench.measurement.markdown import markdown
from workers.iree.device.device import available_drivers
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.precision import Dtype

STAGES = Path(child.__file__)
GATES = {
    "vulkan": (("llama", "float32"), ("qwen2", "float32"), ("mistral", "float32")),
    "": (("llama", "float32"), ("qwen3", "bfloat16"), ("mistral", "float16")),
}
"""Families and types by the driver; "" is any other."""
SMOKE_GATES = (("tiny", "float32"),)
"""The shape that is measured as well, so that graphs are compiled once."""
COLUMNS = ("load s", "step ms", "1 stream", "all slots", "prefill")


@dataclass(frozen=True, slots=True)
class Stage:
    """One process."""

    name: str
    spec: StageSpec
    limit_s: float


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The outcome of a stage."""

    stage: Stage
    verdict: str
    """PASS, SKIP or FAIL."""
    seconds: float
    result: Result


def stages(device: str, dtype: Dtype, shapes: Sequence[str], cache: Path, *, smoke: bool = False) -> list[Stage]:
    """The stages, the most important first."""
    sizes = StageSizes() if device == GENERIC_DEVICE else StageSizes(memory_bytes=GPU_MEMORY_BYTES)
    base = StageSpec("", device, str(cache / "gpu"), sizes=SMOKE if smoke else sizes)
    gates = SMOKE_GATES if smoke else GATES.get(device.partition("://")[0], GATES[""])

    def stage(name: str, limit_s: float, **fields: Any) -> Stage:
        return Stage(name, replace(base, stage=name.partition(" ")[0], **fields), limit_s)

    checks = [stage(f"gate {model} {kind}", 150, model=model, dtype=kind) for model, kind in gates]
    out = [stage("doctor", 60), stage("memory", 60), *checks[:1]]
    for shape in shapes:
        out.append(stage(f"engine {shape}", 240, model=shape, dtype=dtype))
        out.append(stage(f"jax {shape}", 150, model=shape, dtype=dtype))
    return out + checks[1:]


def run(stage: Stage, limit_s: float) -> StageOutcome:
    """Run one stage to its end or its limit, and end the processes that it started."""
    began = time.perf_counter()

    def ended(verdict: str, result: Result) -> StageOutcome:
        return StageOutcome(stage, verdict, time.perf_counter() - began, result)

    if limit_s <= 0:
        return ended("SKIP", Result("no time is left"))
    with tempfile.TemporaryDirectory() as name:
        printed, out = Path(name, "printed"), Path(name, "out")
        with printed.open("wb") as sink:
            spec = msgspec.json.encode(replace(stage.spec, out=str(out))).decode()
            command = [sys.executable, str(STAGES), spec]
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(min(stage.limit_s, limit_s))
            except subprocess.TimeoutExpired:
                return ended("FAIL", Result(f"no end within {min(stage.limit_s, limit_s):.3g} s"))
            finally:
                with contextlib.suppress(ProcessLookupError):  # its compilers are of its group
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status or not out.exists():
            lines = printed.read_text(errors="replace").strip().splitlines()
            print("\n".join(lines[-12:]), flush=True)
            return ended("FAIL", Result(f"status {status}: {(lines or ['no output'])[-1][:400]}"))
        result = msgspec.json.decode(out.read_bytes(), type=Result)
        return ended("SKIP" if result.skipped else "PASS", result)


def run_all(planned: Sequence[Stage], minutes: float) -> Iterator[StageOutcome]:
    """Run one stage after the other and print its outcome; those that would begin too late are skipped."""
    deadline = time.perf_counter() + 60 * minutes
    for stage in planned:
        outcome = run(stage, deadline - time.perf_counter())
        print(f"{outcome.verdict} {stage.name} ({outcome.seconds:.0f} s): {outcome.result.text}", flush=True)
        yield outcome


def table(outcomes: Sequence[StageOutcome]) -> str:
    """The figures of each executor and shape beside the memory limit, and on how many tokens both executors agree."""
    found = {outcome.stage.name: outcome.result for outcome in outcomes if outcome.verdict == "PASS"}
    speed = max((result.figures.get("bandwidth", 0.0) for result in found.values()), default=0.0)
    lines, notes = [], []
    for name, result in found.items():
        kind, _, shape = name.partition(" ")
        if kind not in ("engine", "jax"):
            continue
        cells = [f"{result.figures[column]:.4g}" if column in result.figures else "" for column in COLUMNS]
        bytes_read = found[f"engine {shape}"].figures["step bytes"] if f"engine {shape}" in found else 0.0
        share = bytes_read / speed / (result.figures["step ms"] / 1e3) if speed else 0.0
        lines.append(["IREE" if kind == "engine" else "JAX", shape, *cells, f"{share:.0%}" if share else ""])
        if kind == "jax" and f"engine {shape}" in found:
            notes.append(agreement(shape, found[f"engine {shape}"].tokens, result.tokens))
    sizes = outcomes[0].stage.spec.sizes
    header = ["executor", "shape", *COLUMNS[:2], "1 stream, tokens/s", f"{sizes.slots} streams, tokens/s"]
    header += [f"prefill {sizes.prefill}, tokens/s", "of the memory limit"]
    limit = f"memory: {speed / 1e9:.0f} GB/s" if speed else "memory: not measured"
    return "\n".join([markdown(header, lines) if lines else "nothing was measured", "", limit, *notes])


def agreement(shape: str, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    """Return the number of tokens before two executors first differ."""
    pairs = [list(zip(a, b, strict=True)) for a, b in zip(ours, theirs, strict=True)]
    same = sum(next((at for at, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs)
    return f"{shape}: IREE and JAX agree on {same} of {sum(map(len, pairs))} tokens before the first difference"


def target(text: str) -> tuple[str, str]:
    """Raises `ArgumentTypeError`."""
    try:
        return target_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="cuda", help="of the IREE backend")
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=["110m"], help="measured")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"], help="of the weights"
    )
    parser.add_argument("--minutes", type=above_zero, default=10, help="for all stages together")
    add_cache_dir(parser)
    parser.add_argument("--compile-only", nargs="*", type=target, help="and run nothing; none is all kinds")
    return parsed(parser, words, smoke={"device": GENERIC_DEVICE, "shapes": ["tiny"], "dtype": "float32"})


def main() -> None:
    args = arguments()
    (args.cache_dir / "gpu").mkdir(parents=True, exist_ok=True)
    if args.compile_only is not None:
        targets = args.compile_only or [(driver, "") for driver in TARGETS]
        specs = {name: stages(name, args.dtype, args.shapes, args.cache_dir, smoke=args.smoke) for name in TARGETS}
        good = check_compiles(targets, {name: [each.spec for each in found] for name, found in specs.items()})
        sys.exit(not good)
    print("drivers:", ", ".join(available_drivers()), flush=True)
    planned = stages(args.device, args.dtype, args.shapes, args.cache_dir, smoke=args.smoke)
    outcomes = list(run_all(planned, args.minutes))
    print(f"\n{table(outcomes)}")
    sys.exit(any(outcome.verdict == "FAIL" for outcome in outcomes))


if __name__ == "__main__":
    main()
