"""From a `WorkerSpec` to an engine that has run: what the worker says of itself before, and the load itself."""

import contextlib
import hashlib
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from baton_serve import __version__
from protocol.bounds import MAX_NAME
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.finite_check import TOKEN, NoNumbers, gives_numbers
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.runner import Draw, Row, Runner, RunnerCapabilities
from workers.engine.token_budget import DEFAULT_STEP_TOKENS
from workers.faults.faulty_runner import with_faults
from workers.host.memory import rows_of
from workers.process.backends import SCRIPTED_CONTEXT, Progress, choose_backend, load_runner
from workers.process.spec import WorkerSpec
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from workers.checkpoints.checkpoint import ModelConfig

COMPUTED_BY = {"iree": ("iree-base-compiler", "jax"), "mlx": ("mlx", "mlx-lm")}
"""The distributions in which a backend's arithmetic is written."""


@dataclass(frozen=True, slots=True)
class Described:
    """What `Hello` says before the model is loaded."""

    backend: str
    device: str
    context: int
    digest: str
    """Of all that decides a sequence's tokens."""
    model_digest: str
    """Of the checkpoint alone."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a worker serves with. `vocabulary` is None for a model without a tokenizer."""

    engine: BatchEngine
    vocabulary: Vocabulary | None
    context: int
    step_s: float = 0.0
    """What a step with a full budget of prompt tokens may take, see `warm_up`; 0 when it was not measured."""


def describe(spec: WorkerSpec) -> Described:
    """Read the model's description, not its weights. Raises what `choose_backend` and the checkpoint raise."""
    if spec.backend == "scripted":
        return Described("scripted", "none", spec.context or SCRIPTED_CONTEXT, "scripted", _scripted_digest(spec))
    from workers.checkpoints.checkpoint import (  # a scripted worker starts without numpy's friends
        ModelConfig,
        config_digest,
    )

    backend = choose_backend(spec)
    path = Path(spec.model_path)
    config = ModelConfig.from_dir(path)
    context, quantize = config.choose_context(spec.context), config.choose_quantization(spec.quantize)
    device, computes = _device(spec, backend, config)
    # What decides a sequence's tokens besides the model's files. How many share a batch, or how many threads, does not.
    model = config_digest(path)
    settings = f"{model} {backend} {computes} {spec.dtype} {quantize} {context} {_computed_by(backend)}"
    digest = hashlib.sha256(settings.encode()).hexdigest()[:32]
    return Described(backend, device[:MAX_NAME], context, digest, model)


def _scripted_digest(spec: WorkerSpec) -> str:
    """A script has no checkpoint; its directory's name stands for one."""
    return Path(spec.model_path).name[:MAX_NAME] or "scripted"


def _computed_by(backend: str) -> str:
    """The packages and the machine: sums are written down to a CPU's instructions, and rounded as these do."""
    versions = " ".join([__version__, *map(metadata.version, COMPUTED_BY[backend])])
    if backend != "iree":
        return f"{versions} {platform.machine()}"
    from workers.iree.device.cpu import Cpu

    return f"{versions} {Cpu.of_host().kind}"


def _device(spec: WorkerSpec, backend: str, config: "ModelConfig") -> tuple[str, str]:
    """The device, as far as it is known without the backend's slow import, and what tells the tokens that it draws.

    What a GPU does with sums is its own affair and known only once it is opened, so each machine's is of its own kind.
    """
    if backend != "iree":
        device = spec.device or ("gpu" if sys.platform == "darwin" else "default")
        return device, device if device == "cpu" else f"{device} {platform.node()}"
    from workers.iree.device.drivers import GENERIC_DEVICE, LOCAL_DRIVERS, choose_device, driver_of

    device, _ = choose_device(spec.device, spec.threads, config, spec.workers)
    if driver_of(device) in LOCAL_DRIVERS:
        return device, "cpu"
    return device, device if device == GENERIC_DEVICE else f"{device} {platform.node()}"


def load(spec: WorkerSpec, progress: Progress) -> Loaded:
    """Load tokenizer and runner, and run one step. Called on the thread that will run the engine.

    Raises whatever the backend raises, and `NoNumbers`: the worker cannot serve then.
    """
    vocabulary = _load_vocabulary(spec, progress)
    progress("start backend", 0, 1)  # imports that take seconds, before the backend can report for itself
    runner = load_runner(spec, progress)
    with contextlib.ExitStack() as undo:
        undo.callback(runner.close)
        step_s = 0.0
        if spec.backend != "scripted":  # whose steps take as long as its spec says
            progress("warm-up", 0, 1)
            step_s = warm_up(runner, spec.step_tokens or DEFAULT_STEP_TOKENS)
            progress("warm-up", 1, 1)
        engine = BatchEngine(
            with_faults(runner, spec.faults),  # whose first call is the first request's
            max_queue=spec.max_queue,
            step_tokens=spec.step_tokens or None,
            kv_tokens=kv_tokens(spec, runner.capabilities),
            prefixes=prefix_policy(spec, runner.capabilities),
        )
        undo.pop_all()  # the engine closes it from now on
    return Loaded(engine, vocabulary, runner.capabilities.context, step_s)


def kv_tokens(spec: WorkerSpec, capabilities: RunnerCapabilities) -> int | None:
    """The cache rows that `kv_bytes` pays for, or without it the runner's; None for every slot's whole context.

    Raises `MemoryRefused` when they are fewer than one context, as a load does before it begins.
    """
    if not spec.kv_bytes:
        return capabilities.kv_rows or None
    return rows_of(spec.kv_bytes, capabilities.row_bytes, capabilities.context)


def prefix_policy(spec: WorkerSpec, capabilities: RunnerCapabilities) -> PrefixPolicy:
    """What is kept of ended sequences."""
    most = spec.prefix_bytes // max(capabilities.row_bytes, 1) if spec.prefix_bytes else None
    return PrefixPolicy(spec.prefix_cache, most)


def warm_up(runner: Runner, step_tokens: int, clock: Callable[[], float] = time.monotonic) -> float:
    """One prompt of one token and one decode row, past the engine: no gauge counts it.

    Returns the seconds that a step of `step_tokens` may take: as many of the smallest chunks as they fill, one after
    the other, and the decode rows. Larger chunks only cost less for each token.

    Raises `NoNumbers` where either has no numbers for logits.
    """
    began = clock()
    sane = gives_numbers(runner, 0)
    prefilled = clock()
    if sane:
        sane = runner.decode([Row(0, TOKEN, 1, 1, Draw(Sampling(), 2))]) != [None]
    decode_s = clock() - prefilled
    if not sane:
        raise NoNumbers(runner.capabilities.dtype)
    runner.reset(0)
    chunks = math.ceil(step_tokens / runner.capabilities.prefill_chunks[0])
    return chunks * (prefilled - began) + decode_s


def _load_vocabulary(spec: WorkerSpec, progress: Progress) -> Vocabulary | None:
    if spec.backend == "scripted":
        return ByteTokenizer()
    if not (Path(spec.model_path) / "tokenizer.json").exists():
        return None
    from workers.text.tokenizer import Tokenizer

    progress("tokenizer", 0, 1)
    tokenizer = Tokenizer.from_dir(Path(spec.model_path))
    progress("tokenizer", 1, 1)
    return tokenizer
