"""What `bench/gpu_check.py` does, a stage in a process of its own: `python bench/gpu_stages.py STAGE DEVICE ... FILE`.

The result is written to FILE as JSON. Whatever is raised ends the process, and its last line is the stage's result.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.limits import step_bytes
from bench.ours import Engine
from bench.shapes import make_model
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import DecodeRow
from workers.iree.batch_inputs import Angles
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, module, struct
from workers.iree.build.plan import KV, Plan, decode_buckets, prefill_chunks
from workers.iree.build.recipe import PLAIN_TILE
from workers.iree.device.device import Device
from workers.iree.device.drivers import DEFAULT_DEVICE, GENERIC_DEVICE, LOCAL_DRIVERS, driver_of
from workers.iree.model.decoder import rope_frequencies
from workers.iree.model.ops import Cache
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import build, stored_parameters
from workers.iree.probe import probe_driver
from workers.iree.runner import IreeRunner
from workers.precision import Dtype
from workers.sampling.sample_spec import SampleSpec

SLOTS, CONTEXT, PREFILL = 8, 256, 128
PROMPT, STEPS = 8, 40
"""Tokens that every sequence begins with, and steps that are timed."""
MEMORY_BYTES = 1 << 30
"""More than any cache holds."""
PASSES = 8


class Result(Struct, frozen=True):
    """What a stage found."""

    text: str
    figures: dict[str, float] = {}
    """By the name of their column."""
    tokens: list[list[int]] = []
    """What each executor generated from the same beginnings."""
    skipped: bool = False


def doctor(device: str) -> Result:
    """As `baton doctor` asks; raises `RuntimeError` when the device does not work."""
    driver = DEFAULT_DEVICE if device == GENERIC_DEVICE else driver_of(device)
    line = probe_driver(driver)
    if not line.works:
        raise RuntimeError(f"{line.detail}: {line.advice}")
    return Result(f"{line.detail}; flags {' '.join(Device(device, 0).compile_flags()[-2:])}")


def gate(device: str, folder: Path, family: str, dtype: Dtype) -> Result:
    """Raises `AssertionError` where a request's tokens depend on others."""
    path = make_checkpoint(folder / f"{family}-{dtype}", family)
    report = run_gate(lambda: load(path, device, dtype, folder), resume=Device(device, 0).local)
    return Result(f"{report.requests} requests, {report.tokens} tokens, {report.steps} steps")


def load(path: Path, device: str, dtype: Dtype, folder: Path) -> IreeRunner:
    """With the graphs that every step needs, and no others in the background."""
    config = ModelConfig.from_dir(path)
    quiet: Callable[[str, int, int], None] = lambda phase, done, total: None  # noqa: E731
    options: dict[str, Any] = {"slots": SLOTS, "context": CONTEXT, "threads": 0, "background": False}
    return IreeRunner.load(path, config, device=device, dtype=dtype, cache_dir=folder, progress=quiet, **options)


def memory(device: str, folder: Path, size: int = MEMORY_BYTES) -> Result:
    """Bytes a second that the device reads, and reads and writes, in IREE's own code."""
    opened = Device(device, 0)
    try:
        read, copy = _speeds(opened, folder, size)
    finally:
        opened.close()
    return Result(f"{read / 1e9:.0f} GB/s read, {copy / 1e9:.0f} GB/s copied", {"bandwidth": max(read, copy)})


def _speeds(opened: Device, folder: Path, size: int) -> tuple[float, float]:
    values = struct((size // 4096, 1024), "float32")
    read = Graph("read", lambda x, _: (jnp.max(x, axis=1),), (values,), pure=True)
    copy = Graph("copy", lambda x, _: (x + 1,), (values,), pure=True)
    compiler = Compiler(folder, opened.compile_flags(), opened.compile_target())
    loaded = opened.load(compiler.compile(module([read, copy], {}, {})), None, "")
    x = opened.upload(np.ones(values.shape, np.float32))
    return size / fastest(lambda: loaded.call("read", x)), 2 * size / fastest(lambda: loaded.call("copy", x))


def fastest(call: Callable[[], Any]) -> float:
    """Seconds of a call, the first of which does not count."""
    seconds = []
    for _ in range(1 + PASSES):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def engine(device: str, folder: Path, shape: str, dtype: Dtype) -> Result:
    """The runner and the engine, and the tokens of `SLOTS` sequences from the beginnings that `beginnings` gives."""
    path = make_model(folder, shape)
    began = time.perf_counter()
    runner = load(path, device, dtype, folder)
    loaded = time.perf_counter() - began

    def step(tokens: Sequence[int], at: int) -> list[int]:
        spec = SampleSpec(Sampling(), at + 1)
        sampled = runner.decode([DecodeRow(slot, token, at, at, spec) for slot, token in enumerate(tokens)])
        return [-1 if token is None else token for token in sampled]

    tokens, seconds = generate(step, runner.capabilities.vocab_size)
    for slot in range(SLOTS):
        runner.reset(slot)
    measured = Engine(runner)
    figures = {  # by the columns of bench/gpu_check.py
        "load s": loaded,
        "step ms": 1e3 * seconds,
        "1 stream": measured.decode(1, PROMPT, STEPS),
        f"{SLOTS} streams": measured.decode(SLOTS, PROMPT, STEPS),
        "prefill": max(measured.prefill(PREFILL) for _ in range(3)),
        "step bytes": step_bytes(ModelConfig.from_dir(path), runner).total(SLOTS, CONTEXT),
    }
    runner.close()
    return Result(f"{loaded:.0f} s to load", figures, tokens)


def generate(step: Callable[[Sequence[int], int], list[int]], vocab: int) -> tuple[list[list[int]], float]:
    """Greedy tokens of `SLOTS` sequences that decode together, and the median seconds of a step."""
    starts = np.random.default_rng(7).integers(3, min(vocab, 300), (PROMPT, SLOTS)).tolist()
    tokens, seconds = [step(starts[0], 0)], []
    for at in range(1, PROMPT + STEPS):
        given = starts[at] if at < PROMPT else tokens[-1]
        began = time.perf_counter()
        tokens.append(step(given, at))
        seconds.append(time.perf_counter() - began)
    return [list(column) for column in zip(*tokens[PROMPT:], strict=True)], median(seconds)


def jax_executor(device: str, folder: Path, shape: str, dtype: Dtype) -> Result:
    """The same traced graphs executed by JAX, where it sees the same kind of device."""
    jax.config.update("jax_platforms", None)  # tracing alone needs none but the CPU
    found = jax.devices()[0]
    wanted = "cpu" if driver_of(device) in (*LOCAL_DRIVERS, GENERIC_DEVICE) else "gpu"
    if found.platform != wanted:
        return Result(f"JAX sees {found.platform} and no {wanted} here: pip install 'jax[cuda12]'", skipped=True)
    path = make_model(folder, shape)
    plan, weights = plain_plan(path, dtype)
    began = time.perf_counter()
    executor = Executor(plan, weights)
    executor.decode([0] * SLOTS, 0)
    loaded = time.perf_counter() - began
    tokens, seconds = generate(executor.decode, plan.config.vocab_size)
    executor.prefill(PREFILL)
    taken = min(executor.prefill(PREFILL) for _ in range(5))
    figures = {"load s": loaded, "step ms": 1e3 * seconds, "prefill": PREFILL / taken, "bandwidth": jax_bandwidth()}
    return Result(f"on {found.device_kind}, {figures['bandwidth'] / 1e9:.0f} GB/s read", figures, tokens)


def jax_bandwidth(size: int = MEMORY_BYTES) -> float:
    """Bytes a second that JAX's code reads, which may be more than what IREE's does."""
    x, read = jnp.ones((size // 4096, 1024)), jax.jit(lambda x: jnp.max(x, axis=1))
    return size / fastest(lambda: read(x).block_until_ready())


def plain_plan(path: Path, dtype: Dtype) -> tuple[Plan, Mapping[str, Any]]:
    """The graphs that every device but a CPU's own has, and the weights that they take, as numpy arrays."""
    config = ModelConfig.from_dir(path)
    ops, files = PlainOps(config.dtype if dtype == "auto" else dtype), open_weights(path)
    stored = stored_parameters(config, ops, files, "none")
    cache = Cache.of(config, SLOTS, CONTEXT, PLAIN_TILE)
    plan = Plan(config, ops, cache, stored, decode_buckets(SLOTS)[-1:], prefill_chunks(CONTEXT))
    return plan, {each.name: build(each, files, ops) for each in stored}


class Executor:
    """JAX in the place of IREE: graphs of a plan, weights on its device, and a cache that is updated in place."""

    def __init__(self, plan: Plan, weights: Mapping[str, Any]) -> None:
        self._plan = plan
        self._weights = jax.device_put(dict(weights))
        self._kv = jnp.zeros(plan.cache.shape, plan.ops.dtype)
        self._angles = Angles(*rope_frequencies(plan.config, CONTEXT), CONTEXT)
        self._functions: dict[str, Callable[..., Any]] = {}

    def decode(self, tokens: Sequence[int], at: int) -> list[int]:
        """A step of all slots at one position -> the greedy tokens."""
        sampled, _, self._kv = self._function(f"decode_{SLOTS}")(*self._inputs(np.array([tokens]).T, at), self._weights)
        greedy: list[int] = np.asarray(sampled).tolist()
        return greedy

    def prefill(self, rows: int) -> float:
        """Seconds of a chunk of one slot."""
        last = jnp.zeros(self._plan.last_rows.shape, self._plan.last_rows.dtype)
        inputs = self._inputs(np.full((1, rows), 5), 0)
        began = time.perf_counter()
        hidden, self._kv = self._function(f"prefill_{rows}")(
            *inputs, np.array([rows - 1], np.int32), last, self._weights
        )
        np.asarray(hidden)
        return time.perf_counter() - began

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = jax.jit(self._plan._graph(name).function, donate_argnums=KV)
        return self._functions[name]

    def _inputs(self, tokens: Any, start: int) -> tuple[Any, ...]:
        rows = np.broadcast_to(np.arange(start, start + tokens.shape[1], dtype=np.int32), tokens.shape)
        slots = np.arange(len(tokens), dtype=np.int32)
        return (tokens.astype(np.int32), *self._angles.at(rows), rows, slots, self._kv)


def main(stage: str, device: str, *rest: str) -> None:
    """Run one stage. Raises `ValueError` for one that there is not, and what the stage raises."""
    *arguments, folder, out = rest
    match stage:
        case "doctor":
            result = doctor(device)
        case "memory":
            result = memory(device, Path(folder))
        case "gate":
            result = gate(device, Path(folder), *arguments)  # type: ignore[arg-type]
        case "engine":
            result = engine(device, Path(folder), *arguments)  # type: ignore[arg-type]
        case "jax":
            result = jax_executor(device, Path(folder), *arguments)  # type: ignore[arg-type]
        case _:
            raise ValueError(f"stage: {stage!r} is not one of doctor, memory, gate, engine, jax")
    Path(out).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
