"""Chooses the backend of a `WorkerSpec` and makes its runner. Imports a backend only here, and only if it is chosen."""

import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from workers.backend_plugin import BackendPlugin, load_backend
from workers.engine.runner import Runner
from workers.errors import LoadRefused
from workers.faults.plan import fail_load
from workers.host.memory import leaving_bytes
from workers.load_options import LoadOptions, Progress
from workers.plugins import OWN_BACKENDS, registered_backends
from workers.precision import Quantize
from workers.process.spec import WorkerSpec
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

if TYPE_CHECKING:
    from workers.checkpoints.checkpoint import ModelConfig
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lone_config import LoneConfig
    from workers.iree.build.compile_client import Built
    from workers.plugins import Plugin

PACKAGES = {"iree": ("iree.runtime", "iree.compiler", "jax"), "mlx": ("mlx.core", "mlx_lm")}
"""Modules that each backend needs."""
SCRIPTED_CONTEXT = 4096
LOAD_TICKS = 20
"""Progress reports of a scripted load."""
SCRIPTED_WIDTH = 8
"""Numbers of a row of embeddings and of a hidden state of the scripted runner."""
SCRIPTED_DRAFTS = 8
"""Rows of drafted tokens in a step of the scripted runner, beside one of each slot."""


class BackendMissing(LoadRefused):
    """Raised when the packages of a backend are not installed or cannot be imported; the text says what to install."""


class NothingToCompile(LoadRefused):
    """Raised when a backend has nothing to compile ahead of time."""


def choose_backend(spec: WorkerSpec) -> str:
    """Return the backend of `spec`: iree, mlx, scripted or that of a plug-in.

    "auto" is mlx on Apple silicon and iree elsewhere, or the other one if only that is installed. Raises
    `BackendMissing` if the backend is not installed, and `PluginRefused`.
    """
    if spec.backend == "scripted":
        return "scripted"
    if spec.backend != "auto":
        _require(spec.backend)
        return spec.backend
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    order = ("mlx", "iree") if apple else ("iree", "mlx")
    for backend in order:
        if not missing_packages(backend):
            return backend
    raise BackendMissing("no backend is installed: pip install 'baton-serve[iree]' or 'baton-serve[mlx]'")


def missing_packages(backend: str) -> tuple[str, ...]:
    """Return the packages of a backend that are not installed, without importing any."""
    own = PACKAGES.get(backend)
    return tuple(name for name in (plugged(backend).packages if own is None else own) if not _installed(name))


def plugged(backend: str) -> BackendPlugin:
    """Return the backend of a plug-in. Raises `BackendMissing` if none has this name, and `PluginRefused`."""
    found = load_backend(backend)
    if found is None:
        names = ", ".join([*OWN_BACKENDS, *registered_backends()])
        raise BackendMissing(f"backend: {backend!r} is none of {names}: install the distribution that registers it")
    return found


def family_plugins(backend: str, family: str) -> "list[Plugin]":
    """Return the plug-ins that describe a family for a backend: none for one of Baton's own."""
    from workers.checkpoints.architectures.registered_families import registered_family

    found = [registered_family(family)]
    if backend == "mlx":
        from workers.mlx.families import adapter_plugin

        found.append(adapter_plugin(family))
    return [plugin for plugin in found if plugin is not None]


def load_runner(spec: WorkerSpec, progress: Progress) -> Runner:
    """Load the model of `spec` on its backend. The calling thread owns the runner from then on.

    Raises `BackendMissing`, `workers.checkpoints.checkpoint.CheckpointError` for a model that cannot be served, any
    other error of the device, and the planned faults of a load.
    """
    runner = _load(spec, progress)
    try:
        fail_load(spec.faults)
    except Exception:
        runner.close()
        raise
    return runner


def _load(spec: WorkerSpec, progress: Progress) -> Runner:
    backend = choose_backend(spec)
    if backend == "scripted":
        return _load_scripted(spec, progress)
    from workers.checkpoints.lone_config import LoneConfig

    path, config = open_checkpoint(spec)
    if not isinstance(config, LoneConfig):  # mlx-lm itself reads the files of those
        _log_converted(path, spec.quantize, mlx=backend == "mlx")
    return _load_on(backend, path, config, options_of(spec, backend, config), progress)


def _log_converted(path: Path, quantize: Quantize, *, mlx: bool) -> None:
    """Log what becomes of the tensor types of a GGUF file, and of low-bit matrices."""
    from workers.checkpoints.checkpoint import open_weights
    from workers.checkpoints.gguf.gguf_weights import GgufWeights
    from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights

    weights = open_weights(path, quantize)
    if isinstance(weights, GgufWeights):
        kept = weights.widths() if quantize == "none" else quantize
        structlog.get_logger().info(
            "gguf_weights", path=str(weights.path), types=weights.types(), kept=kept, requantized=weights.inexact()
        )
    elif isinstance(weights, LowBitWeights):
        structlog.get_logger().info(
            "low_bit_weights",
            path=str(weights.path),
            method=weights.scheme.method,
            kinds=weights.kinds(),
            kept=weights.widths(mlx=mlx) if quantize == "none" else quantize,
            requantized=weights.inexact(mlx=mlx) if quantize == "none" else weights.kinds(),
            not_followed=list(weights.scheme.ignored),
        )


def open_checkpoint(spec: WorkerSpec) -> "tuple[Path, ModelConfig | LoneConfig | EncoderConfig]":
    """Return the directory and the description of a checkpoint, all of whose tensors are used. Reads the headers of its
    weight files, unless only mlx-lm describes them. Raises `CheckpointError`."""
    from workers.checkpoints.architectures.tensors import check_tensors, is_derived
    from workers.checkpoints.checkpoint import open_weights
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.encoders.tensors import check_encoder_tensors
    from workers.checkpoints.lone_config import LoneConfig

    path, config = Path(spec.model_path), served_config(spec)
    if isinstance(config, LoneConfig):
        config.weight_bytes(path, spec.dtype)
        return path, config
    weights = open_weights(path)
    if isinstance(config, EncoderConfig):
        check_encoder_tensors(weights, config, path)
        return path, config
    check_tensors(weights, config, path, weights.adds_nothing)
    weights.check_types(lambda name: is_derived(name, config))
    stated = config.mtp_layers and config.mtp_names is not None and not config.mtp_names.by_presence
    if drafts_by_head(spec) and stated and not config.mtp:
        structlog.get_logger().warning("mtp_head_missing", path=str(path), layers=config.mtp_layers)
    return path, config


def check_readable(backend: str, path: Path, config: "ModelConfig | LoneConfig | EncoderConfig") -> None:
    """Raise `CheckpointError` for a quantization that only other backends read, as the load would."""
    from workers.checkpoints.checkpoint import CheckpointError, ModelConfig

    if backend != "mlx" or not isinstance(config, ModelConfig):
        return
    from workers.mlx.families import unread_quantization

    if problem := unread_quantization(config):
        raise CheckpointError(path / "config.json", "quantization_config.quant_method", problem)


def drafts_by_head(spec: WorkerSpec) -> bool:
    """Return whether the model's own head for multi-token prediction drafts tokens, if it has one. It starts from the
    embeddings of tokens, and rows of embeddings have none."""
    wanted = spec.speculate == "auto" and not spec.draft_model and not spec.embeddings
    return wanted and may_verify_drafts(spec, choose_backend(spec))


def _takes_back(backend: str, slots: int, config: "ModelConfig") -> bool:
    """Return whether rejected drafts can be taken back from the recurrent state of a model, if it has one."""
    from workers.iree.model.state_versions import rollback_rows

    return not config.state_layers or (backend == "iree" and rollback_rows(config, slots) > 1)


def may_verify_drafts(spec: WorkerSpec, backend: str) -> bool:
    """Return False for a device or a batch whose steps cannot verify drafts, as far as that is known before the device
    is opened. The loaders ask the same function of their backend about the opened one."""
    if backend == "iree":
        from workers.iree.device.drivers import verifies_drafts

        return verifies_drafts(spec.device, spec.max_batch_size)
    if backend not in OWN_BACKENDS:
        return plugged(backend).verifies_drafts(spec.device, spec.max_batch_size)
    from workers.mlx import probe

    return probe.verifies_drafts(spec.device)


def served_config(spec: WorkerSpec) -> "ModelConfig | LoneConfig | EncoderConfig":
    """Return the description of a checkpoint, with its head for multi-token prediction if that drafts tokens; a
    `LoneConfig` for a model that only mlx-lm describes, an `EncoderConfig` for an encoder. Raises `CheckpointError`."""
    from workers.checkpoints.architectures.tensors import has_mtp
    from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
    from workers.checkpoints.encoders.reading import is_encoder, served_encoder

    path, backend = Path(spec.model_path), choose_backend(spec)
    if is_encoder(path):
        return served_encoder(path, backend in PACKAGES)
    if backend == "mlx":
        from workers.mlx.alone.choice import lone_config

        if (lone := lone_config(path, spec.context)) is not None:
            return lone
    try:
        config = ModelConfig.from_dir(path)
    except CheckpointError as error:
        if error.field not in ("model_type", "architectures") or backend == "mlx":
            raise
        others = "--backend mlx also serves the other models that mlx-lm can load"
        raise CheckpointError(error.file, error.field, f"{error.problem}; {others}") from error
    wanted = drafts_by_head(spec) and config.mtp_names is not None and _takes_back(backend, spec.max_batch_size, config)
    return config.with_mtp() if wanted and has_mtp(open_weights(path), config) else config


def slots_of(spec: WorkerSpec, config: "ModelConfig | LoneConfig | EncoderConfig") -> int:
    """Return the sequences that a worker computes at once: one of a model that only mlx-lm describes."""
    from workers.checkpoints.lone_config import LoneConfig

    return 1 if isinstance(config, LoneConfig) else spec.max_batch_size


def options_of(spec: WorkerSpec, backend: str, config: "ModelConfig | LoneConfig | EncoderConfig") -> LoadOptions:
    """The options of a load as `spec` and the model's config.json set them. Raises `CheckpointError`."""
    # Slow imports, which a script does not need.
    from workers.process.startup.context_choice import ContextChoice, check_window_cache, kv_bytes_of
    from workers.process.startup.tier_reserve import tier_reserve

    check_window_cache(spec, backend)
    context = ContextChoice.of(spec, backend, config).context
    return LoadOptions(
        device=spec.device,
        dtype=spec.dtype,
        quantize=config.choose_quantization(spec.quantize),
        kv_dtype=spec.kv_dtype,
        window_cache=spec.window_cache,
        cpu=spec.cpu,
        slots=slots_of(spec, config),
        context=context,
        cache_dir=cache_dir(spec),
        threads=spec.threads,
        threads_bind=spec.threads_bind,
        mmap=spec.mmap,
        kv_bytes=kv_bytes_of(spec, backend, config, context),
        leaving_bytes=leaving_bytes(spec.predecessor, os.getppid()),  # the parent of a worker is the server
        reserved_bytes=tier_reserve(spec.prefix_cache_bytes, spec.prefix_cache_dir),
        adapter=Path(spec.adapter) if spec.adapter else None,
        lora_modules=tuple((name, Path(path)) for name, path in spec.lora_modules.items()),
        max_lora_rank=spec.max_lora_rank,
        runtime_loras=spec.runtime_loras,
        embeddings=spec.embeddings,
        vision=spec.vision,
        mmproj=spec.mmproj,
        attention=spec.attention,
        workers=spec.workers,
        place=spec.place,
    )


def compile_ahead(spec: WorkerSpec, progress: Progress, *, rare: bool = True) -> "Iterator[Built]":
    """Compile what a worker of `spec` would compile, one module after the other; without `rare`, not what it would
    compile only if a request needs it.

    Raises `NothingToCompile`, and what `load_runner` raises.
    """
    backend = choose_backend(spec)
    if backend != "iree":
        raise NothingToCompile(f"the {backend} backend compiles nothing ahead of time")
    from workers.checkpoints.lone_config import LoneConfig
    from workers.iree.build.ahead_of_time import compile_ahead

    path, config = open_checkpoint(spec)
    assert not isinstance(config, LoneConfig)  # these are for mlx
    return compile_ahead(path, config, options_of(spec, backend, config), progress, rare=rare)


def _load_on(
    backend: str,
    path: Path,
    config: "ModelConfig | LoneConfig | EncoderConfig",
    options: LoadOptions,
    progress: Progress,
) -> Runner:
    """Raises `BackendMissing` when an installed package cannot be imported, as MLX without its library."""
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lone_config import LoneConfig

    load: Callable[[], Runner]
    try:
        if isinstance(config, LoneConfig):
            from workers.mlx.alone.runner import LoneRunner

            load = partial(LoneRunner.load, path, config, options, progress)
        elif isinstance(config, EncoderConfig) and backend == "mlx":
            from workers.mlx.encoder.runner import MlxEncoderRunner

            load = partial(MlxEncoderRunner.load, path, config, options, progress)
        elif isinstance(config, EncoderConfig):
            from workers.iree.encoder.runner import IreeEncoderRunner

            load = partial(IreeEncoderRunner.load, path, config, options, progress)
        elif backend == "mlx":
            from workers.mlx.runner import MlxRunner

            load = partial(MlxRunner.load, path, config, options, progress)
        elif backend not in PACKAGES:
            return _load_plugged(backend, path, config, options, progress)
        else:
            from workers.iree.runner import IreeRunner

            load = partial(IreeRunner.load, path, config, options, progress)
    except ImportError as error:
        raise BackendMissing(
            f"the {backend} backend cannot be imported: {error}: pip install 'baton-serve[{backend}]'"
        ) from error
    return load()


def _load_plugged(backend: str, path: Path, config: "ModelConfig", options: LoadOptions, progress: Progress) -> Runner:
    """Raises `BackendMissing` for a plug-in whose imports fail, and `PluginRefused` for one that loads no runner."""
    try:
        runner = plugged(backend).load(path, config, options, progress)
    except ImportError as error:
        raise BackendMissing(f"the {backend} backend cannot be imported: {error}") from error
    lacking = [name for name in dir(Runner) if not name.startswith("_") and not hasattr(runner, name)]
    if lacking:
        problem = f"has a load that returns no runner but {type(runner).__name__}, which has no {lacking[0]!r}"
        raise registered_backends()[backend].refused(problem)
    return runner


def cache_dir(spec: WorkerSpec) -> Path:
    """Return the folder of compiled graphs: that of the spec, or `baton` in the user's cache folder."""
    if spec.cache_dir:
        return Path(spec.cache_dir).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "baton"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "baton"


def _load_scripted(spec: WorkerSpec, progress: Progress) -> Runner:
    progress("load", 0, LOAD_TICKS)
    for tick in range(1, LOAD_TICKS + 1 if spec.scripted.load_seconds else 1):
        time.sleep(spec.scripted.load_seconds / LOAD_TICKS)
        progress("load", tick, LOAD_TICKS)
    rows = spec.max_batch_size + SCRIPTED_DRAFTS if spec.scripted.drafts else 0
    return ScriptedRunner(
        slots=spec.max_batch_size,
        context=spec.context or SCRIPTED_CONTEXT,
        tokens_per_second=spec.scripted.tokens_per_second,
        prefill_tokens_per_second=spec.scripted.prefill_tokens_per_second,
        decode_rows=rows,
        state_bytes=STATE_BYTES if spec.scripted.recurrent else 0,
        rollback_rows=rows if spec.scripted.recurrent else 0,
        embedding_width=SCRIPTED_WIDTH if spec.embeddings else 0,
        images=spec.scripted.images,
        mrope=spec.scripted.images,
        image_part_seconds=spec.scripted.image_part_seconds,
        sparse=spec.sparse_prefill or spec.attention,
        hidden_width=SCRIPTED_WIDTH,
        bidirectional=spec.scripted.pooling != "vectors",
        adapters=tuple(spec.lora_modules),
        adapter_places=spec.runtime_loras,
    )


def _require(backend: str) -> None:
    missing = missing_packages(backend)
    if missing:
        names = " and ".join(missing)
        how = f"pip install 'baton-serve[{backend}]'" if backend in PACKAGES else "see its documentation"
        raise BackendMissing(f"the {backend} backend needs {names}: {how}")


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is not installed
        return False
