"""Child process of `bench/gpu_check.py`: one of its stages, which a JSON object describes.

    python bench/gpu/stages.py '{"stage": "doctor", "device": "cuda", "folder": "/tmp", "out": "/tmp/result.json"}'

The result is written to `out` as JSON. Any exception ends the process, and its last line is the stage's result.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.executor import Executor, plain_plan
from bench.harness.engine import Engine
from bench.harness.shapes import SHAPES, make_model
from bench.measurement.limits import step_bytes
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.device import Device
from workers.iree.device.drivers import DEFAULT_DEVICE, GENERIC_DEVICE, LOCAL_DRIVERS, driver_of
from workers.iree.probe import probe_driver
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions
from workers.precision import Dtype
from workers.sampling.sample_spec import SampleSpec

ROUNDING = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}
"""The distance that logits may have from those in float32, as a share of the largest: twice that of 24 layers."""


class StageSizes(Struct, frozen=True, forbid_unknown_fields=True):
    """The amount of work of a stage."""

    slots: int = 8
    context: int = 256
    prefill: int = 128
    prompt: int = 8
    """Tokens that every sequence begins with."""
    steps: int = 40
    """Decode steps that are timed."""
    requests: int = 36
    """Requests of a gate."""
    memory_bytes: int = 1 << 30
    """Bytes that a read of memory takes: more than any cache holds."""
    copied_bytes: int = 1 << 30
    """Bytes that a copy reads, and writes again."""
    passes: int = 8
    """Reads, of which the fastest counts."""


SMOKE = StageSizes(
    slots=2, context=64, prefill=32, steps=4, requests=8, memory_bytes=1 << 20, copied_bytes=1 << 20, passes=2
)
GPU_MEMORY_BYTES = 4 << 30
"""Bytes that a GPU reads: that takes a millisecond or more, beside which the start of a call is short."""


class StageSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The stage that a child runs."""

    stage: str
    device: str
    folder: str
    """Keeps models and compiled graphs."""
    model: str = ""
    """A shape, or for a gate also a family."""
    dtype: Dtype = "float32"
    sizes: StageSizes = StageSizes()
    out: str = ""


class Result(Struct, frozen=True):
    """The result of a stage."""

    text: str
    figures: dict[str, float] = {}
    """By the name of their column."""
    tokens: list[list[int]] = []
    """Greedy tokens from the prompts that are the same for each executor."""
    skipped: bool = False


def doctor(spec: StageSpec) -> Result:
    """The check of `baton doctor`. Raises `RuntimeError` if the device does not work."""
    driver = DEFAULT_DEVICE if spec.device == GENERIC_DEVICE else driver_of(spec.device)
    line = probe_driver(driver)
    if not line.works:
        raise RuntimeError(f"{line.detail}: {line.advice}")
    return Result(f"{line.detail}; flags {' '.join(Device(spec.device, 0).compile_flags()[-2:])}")


def gate(spec: StageSpec) -> Result:
    """Raises `AssertionError` if a request's tokens depend on others, or if logits are wrong."""
    path, local = checkpoint(spec), Device(spec.device, 0).local
    report = run_gate(lambda: load(path, spec), requests=spec.sizes.requests, resume=local)
    runner = load(path, spec)
    far = compare(path, spec, runner)
    runner.close()
    return Result(f"{report.requests} requests, {report.tokens} tokens, {report.steps} steps; logits off by {far:.2g}")


def checkpoint(spec: StageSpec) -> Path:
    """The stage's model, made in its folder."""
    folder = Path(spec.folder)
    if spec.model in SHAPES:
        return make_model(folder, spec.model)
    return make_checkpoint(folder / f"{spec.model}-{spec.dtype}", spec.model)


def load(path: Path, spec: StageSpec) -> IreeRunner:
    """Load a model with the graphs that every step needs, and without compiling others in the background."""
    options = LoadOptions(
        device=spec.device,
        dtype=spec.dtype,
        slots=spec.sizes.slots,
        context=spec.sizes.context,
        cache_dir=Path(spec.folder),
    )
    config = ModelConfig.from_dir(path)
    return IreeRunner.load(path, config, options, lambda phase, done, total: None, background=False)


def compare(path: Path, spec: StageSpec, runner: IreeRunner) -> float:
    """Return how far the logits of a prompt are from JAX's on the CPU in float32, as a share of the largest of them.

    They come from the graph that scores prompts; those of the last token also from decode steps, and its greedy token
    from the graphs that serve prompts. Raises `AssertionError` where rounding does not explain a difference.
    """
    tokens = tuple(np.random.default_rng(11).integers(3, 300, spec.sizes.context // 4).tolist())
    wanted = Executor(*plain_plan(path, "float32", 1, spec.sizes.context), spec.sizes.context).logits(tokens)
    chunk, largest = Chunk(0, tokens, 0, 0), np.abs(wanted).max()
    found = np.concatenate([runner.logits(chunk), runner._scores.score_row(chunk, len(tokens) - 1)])
    runner.reset(0)
    (token,) = runner.prefill([chunk], [SampleSpec(Sampling(), len(tokens))])
    runner.reset(0)
    short = wanted[-1].max() - wanted[-1, token] if token is not None else np.inf
    far = float(max(np.abs(found - np.concatenate([wanted, wanted[-1:]])).max(), short / 2) / largest)
    if not far <= ROUNDING[runner.capabilities.dtype]:
        raise AssertionError(f"logits are off by {far:.2g} of the largest, in {runner.capabilities.dtype}")
    return far


def memory(spec: StageSpec) -> Result:
    """Bytes a second that the device reads, and reads and writes, in IREE's own code."""
    opened = Device(spec.device, 0)
    try:
        read, copy = _speeds(opened, Path(spec.folder), spec.sizes)
    finally:
        opened.close()
    return Result(f"{read / 1e9:.0f} GB/s read, {copy / 1e9:.0f} GB/s copied", {"bandwidth": max(read, copy)})


def _speeds(opened: Device, folder: Path, sizes: StageSizes) -> tuple[float, float]:
    values, some = (struct((size // 4096, 1024), "float32") for size in (sizes.memory_bytes, sizes.copied_bytes))
    read = Graph("read", lambda x, _: (jnp.max(x, axis=1),), (values,), pure=True)
    copy = Graph("copy", lambda x, _: (x + 1,), (some,), pure=True)
    compiler = Compiler(folder, opened.compile_flags(), opened.compile_target())
    loaded = opened.load(compiler.compile(lower_module([read, copy], {}, {})), None, "")
    x, y = (opened.upload(np.ones(each.shape, np.float32)) for each in (values, some))
    read_s = fastest(lambda: loaded.call("read", x), sizes.passes)
    copy_s = fastest(lambda: loaded.call("copy", y), sizes.passes)
    return sizes.memory_bytes / read_s, 2 * sizes.copied_bytes / copy_s


def fastest(call: Callable[[], Any], passes: int) -> float:
    """Seconds of the fastest of `passes` calls, after one that does not count."""
    seconds = []
    for _ in range(1 + passes):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def engine(spec: StageSpec) -> Result:
    """The runner and the engine, and the tokens that `generate` gets from the runner."""
    path, sizes = make_model(Path(spec.folder), spec.model), spec.sizes
    began = time.perf_counter()
    runner = load(path, spec)
    loaded = time.perf_counter() - began

    def step(tokens: Sequence[int], at: int) -> list[int]:
        greedy = SampleSpec(Sampling(), at + 1)
        sampled = runner.decode([DecodeRow(slot, token, at, at, greedy) for slot, token in enumerate(tokens)])
        return [-1 if token is None else token for token in sampled]

    far = compare(path, spec, runner)
    tokens, seconds = generate(step, runner.capabilities.vocab_size, sizes)
    for slot in range(sizes.slots):
        runner.reset(slot)
    measured = Engine(runner)
    figures = {  # by the columns of bench/gpu_check.py
        "load s": loaded,
        "step ms": 1e3 * seconds,
        "1 stream": measured.decode(1, sizes.prompt, sizes.steps),
        "all slots": measured.decode(sizes.slots, sizes.prompt, sizes.steps),
        "prefill": max(measured.prefill(sizes.prefill) for _ in range(3)),
        "step bytes": step_bytes(ModelConfig.from_dir(path), runner).total(sizes.slots, sizes.context),
    }
    runner.close()
    return Result(f"{loaded:.0f} s to load; logits off by {far:.2g}", figures, tokens)


def generate(
    step: Callable[[Sequence[int], int], list[int]], vocab: int, sizes: StageSizes
) -> tuple[list[list[int]], float]:
    """Greedy tokens of sequences that decode together, and the median seconds of a step."""
    prompts = np.random.default_rng(7).integers(3, min(vocab, 300), (sizes.prompt, sizes.slots)).tolist()
    tokens, seconds = [step(prompts[0], 0)], []
    for at in range(1, sizes.prompt + sizes.steps):
        given = prompts[at] if at < sizes.prompt else tokens[-1]
        began = time.perf_counter()
        tokens.append(step(given, at))
        seconds.append(time.perf_counter() - began)
    return [list(column) for column in zip(*tokens[sizes.prompt :], strict=True)], median(seconds)


def jax_executor(spec: StageSpec) -> Result:
    """The same traced graphs executed by JAX, if it sees the same kind of device."""
    jax.config.update("jax_platforms", None)  # tracing alone needs none but the CPU
    found, sizes = jax.devices()[0], spec.sizes
    wanted = "cpu" if driver_of(spec.device) in (*LOCAL_DRIVERS, GENERIC_DEVICE) else "gpu"
    if found.platform != wanted:
        return Result(f"JAX sees {found.platform} and no {wanted} here: pip install 'jax[cuda12]'", skipped=True)
    path = make_model(Path(spec.folder), spec.model)
    plan, weights = plain_plan(path, spec.dtype, sizes.slots, sizes.context)
    began = time.perf_counter()
    executor = Executor(plan, weights, sizes.context)
    executor.decode([0] * sizes.slots, 0)
    loaded = time.perf_counter() - began
    tokens, seconds = generate(executor.decode, plan.config.vocab_size, sizes)
    executor.prefill(sizes.prefill)
    taken = min(executor.prefill(sizes.prefill) for _ in range(5))
    figures = {"load s": loaded, "step ms": 1e3 * seconds, "prefill": sizes.prefill / taken}
    figures["bandwidth"] = jax_bandwidth(sizes)
    return Result(f"on {found.device_kind}, {figures['bandwidth'] / 1e9:.0f} GB/s read", figures, tokens)


def jax_bandwidth(sizes: StageSizes) -> float:
    """Bytes a second that JAX's code reads, which may be more than what IREE's does."""
    x, read = jnp.ones((sizes.memory_bytes // 4096, 1024)), jax.jit(lambda x: jnp.max(x, axis=1))
    return sizes.memory_bytes / fastest(lambda: read(x).block_until_ready(), sizes.passes)


STAGES: dict[str, Callable[[StageSpec], Result]] = {
    "doctor": doctor,
    "memory": memory,
    "gate": gate,
    "engine": engine,
    "jax": jax_executor,
}


def main(text: str) -> None:
    """Run the stage that `text`, a `StageSpec` as JSON, describes.

    Raises `msgspec.ValidationError`, `ValueError` for an unknown stage, and what the stage raises.
    """
    spec = msgspec.json.decode(text, type=StageSpec)
    if spec.stage not in STAGES:
        raise ValueError(f"stage: {spec.stage!r} is not one of {', '.join(STAGES)}")
    Path(spec.out).write_bytes(msgspec.json.encode(STAGES[spec.stage](spec)))


if __name__ == "__main__":
    main(*sys.argv[1:])
