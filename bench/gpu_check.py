"""Does the IREE runner work on a GPU, and how fast: the reference gate, then a small benchmark. One command:

    python bench/gpu_check.py [--device cuda] [--shapes 110m 0.5b]
    python bench/gpu_check.py --compile-only [cuda hip vulkan]

The gate runs small models of four families in float32 and bfloat16 (greedy and seeded requests through 8 slots, against
the same requests alone). With `--compile-only` every graph of a small model is compiled for these kinds of GPUs, which
needs none. Every stage says PASS or FAIL and why; the exit status is 1 when one failed.
"""

import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.command_line import command_line
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from workers.affinity import usable_cores
from workers.checkpoint import ModelConfig
from workers.iree.device import Device, available_drivers
from workers.iree.gpu import gpu_flags
from workers.iree.recipe import Recipe
from workers.iree.runner import IreeRunner

TARGETS = {"cuda": "sm_80", "hip": "gfx942", "vulkan": ""}
"""What `--compile-only` compiles for: an A100, an MI300, and any GPU with Vulkan."""
GATES = (
    ("llama", "float32"),
    ("llama", "bfloat16"),
    ("qwen2", "float32"),
    ("qwen3", "bfloat16"),
    ("mistral", "float16"),
)


def stage(name: str, run: Callable[[], str]) -> bool:
    """Run one stage, say how it went; whatever it raises is what the reader came to see."""
    start = time.perf_counter()
    try:
        result = run()
    except Exception as error:  # noqa: BLE001 - the message is the result
        traceback.print_exc(limit=-4)
        print(f"FAIL {name}: {type(error).__name__}: {str(error)[:1000]}", flush=True)
        return False
    print(f"PASS {name} ({time.perf_counter() - start:.1f} s): {result}", flush=True)
    return True


def gate(device: str, family: str, dtype: str, folder: Path) -> str:
    path = make_checkpoint(folder / f"{family}-{dtype}", family)  # type: ignore[arg-type]

    def load() -> IreeRunner:
        return IreeRunner.load(
            path,
            ModelConfig.from_dir(path),
            device=device,
            dtype=dtype,  # type: ignore[arg-type]
            slots=8,
            context=256,
            cache_dir=folder / "cache",
            threads=0,
            progress=lambda phase, done, total: None,
        )

    report = run_gate(load, resume=Device(device, 0).local)
    return f"{report.requests} requests, {report.tokens} tokens, {report.steps} steps"


def compile_all(driver: str, architecture: str, folder: Path) -> str:
    path = make_checkpoint(folder / driver, layers=1)
    flags = gpu_flags(driver, architecture)
    recipe = Recipe(str(path), "auto", False, 2, 64, flags, driver, str(folder / "cache"))
    plan, compiler = recipe.plan(), recipe.compiler()
    texts = [plan.module(names) for names in plan.everything()]
    with ThreadPoolExecutor(usable_cores()) as pool:
        files = list(pool.map(compiler.compile, texts))
    return f"{sum(map(len, plan.everything()))} graphs in {len(files)} modules"


def check_compiles(drivers: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stages = [
            stage(f"compile {driver} {chip}", lambda driver=driver, chip=chip: compile_all(driver, chip, folder))  # type: ignore[misc]
            for driver, chip in TARGETS.items()
            if driver in drivers
        ]
    return all(stages)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="cuda", help="of the IREE backend")
    parser.add_argument("--shapes", nargs="*", default=["110m"], help="shapes of bench/engine.py; none skips it")
    parser.add_argument("--compile-only", nargs="*", choices=TARGETS, help="and run nothing; none is all")
    args = parser.parse_args()
    if args.compile_only is not None:
        sys.exit(not check_compiles(args.compile_only or list(TARGETS)))
    print("drivers:", ", ".join(available_drivers()))
    good = stage("open", lambda: " ".join(Device(args.device, 0).compile_flags()))
    if good:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for family, dtype in GATES:
                good &= stage(
                    f"gate {family} {dtype}",
                    lambda family=family, dtype=dtype: gate(args.device, family, dtype, folder),  # type: ignore[misc]
                )
        if args.shapes:
            bench = [sys.executable, str(Path(__file__).with_name("engine.py")), "--device", args.device]
            good &= subprocess.run([*bench, "--models", *args.shapes], check=False).returncode == 0
    sys.exit(not good)


if __name__ == "__main__":
    main()
