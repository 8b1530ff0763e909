"""Describes a worker before its model is loaded: device, context and the digests that `Hello` carries."""

import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from baton_serve import __version__
from protocol.bounds import MAX_NAME, PROTOCOL_VERSION
from protocol.events import Hello
from workers.errors import LoadRefused
from workers.host.cpu_plan import CpuPlan
from workers.output_formats.formats.choice import AUTO, choose_formats
from workers.precision import CpuTarget
from workers.process.backends import SCRIPTED_CONTEXT, choose_backend, family_plugins, plugged, served_config
from workers.process.spec import WorkerSpec
from workers.process.startup.lora import check_lora, lora_digest

if TYPE_CHECKING:
    from workers.checkpoints.checkpoint import ModelConfig
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lone_config import LoneConfig

COMPUTED_BY = {"iree": ("iree-base-compiler", "jax", "llguidance"), "mlx": ("mlx", "mlx-lm", "llguidance")}
"""Distributions that define the arithmetic of a backend, and the tokens that a grammar allows."""


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a worker for `Hello`, before the model is loaded."""

    backend: str
    device: str
    context: int
    model_context: int
    """The context that the model declares."""
    context_bound: str
    """See `Hello.context_bound`."""
    digest: str
    """Digest of everything that determines the tokens of a sequence."""
    model_digest: str
    """Digest of the checkpoint alone."""
    slots_bound: str = ""
    """See `Hello.slots_bound`: the worker has one slot if it is not empty."""


def describe(spec: WorkerSpec, *, compile_only: bool = False) -> Described:
    """Read the description of the model, not its weights.

    Raises `UnknownFormat`, `LoadRefused` for a `cpu` that the backend or, without `compile_only`, this machine does not
    have, and what `choose_backend` and the checkpoint raise.
    """
    choose_formats(spec.reasoning_parser, spec.tool_parser)
    backend = choose_backend(spec)
    if spec.draft_model and spec.speculate == "off":
        raise LoadRefused(
            "draft_model: it cannot be loaded with speculate off, also for sparse prefill alone: set --speculate auto; "
            'a request with "speculate": false is not drafted for'
        )
    if backend != "iree" and spec.cpu != "host":
        raise LoadRefused(f"cpu: {spec.cpu!r} has no effect on the {backend} backend: leave the setting `cpu` out")
    if spec.sparse_prefill and not spec.draft_model:
        raise LoadRefused("sparse_prefill: a smaller model scores the prompts: set --draft-model, or leave it out")
    check_lora(spec)
    if backend == "scripted":
        context = spec.context or SCRIPTED_CONTEXT
        return Described("scripted", "none", context, context, "", "scripted", _scripted_digest(spec))
    from workers.checkpoints.checkpoint import config_digest  # slow imports that a script does not need
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lone_config import LoneConfig
    from workers.process.startup.alone import check_alone
    from workers.process.startup.context_choice import ContextChoice
    from workers.process.startup.draft_plan import check_draft
    from workers.process.startup.encoder_settings import check_encoder
    from workers.process.startup.projector import projector_digest
    from workers.process.startup.sparse_plan import check_sparse
    from workers.process.startup.state_sizes import check_state_cache

    path = Path(spec.model_path)
    config = served_config(spec)
    lone = isinstance(config, LoneConfig)
    if isinstance(config, LoneConfig):
        check_alone(spec, config)
    elif isinstance(config, EncoderConfig):
        check_encoder(spec, config)
    elif spec.draft_model:
        check_draft(spec, backend, config)
    if spec.sparse_prefill and not isinstance(config, EncoderConfig):
        check_sparse(spec, config)
    check_state_cache(spec, backend, config)
    quantize, chosen = config.choose_quantization(spec.quantize), ContextChoice.of(spec, backend, config)
    context = chosen.context
    device, computes = _device(spec, backend, config)
    # Batch size and number of threads do not affect the tokens of a sequence.
    model = config_digest(path)
    by = _computed_by(backend, spec.cpu, compile_only)
    if spec.adapter:
        model = hashlib.sha256(f"{model} {_adapter_digest(spec, backend)}".encode()).hexdigest()[:32]
    if projector := projector_digest(spec, config):
        model = hashlib.sha256(f"{model} mmproj {projector}".encode()).hexdigest()[:32]
    if spec.lora_modules:
        model = hashlib.sha256(f"{model} {lora_digest(spec, backend, config)}".encode()).hexdigest()[:32]
    settings = f"{model} {backend} {computes} {spec.dtype} {quantize} {context} {by}"
    if spec.kv_dtype != "auto":
        settings += f" kv {spec.kv_dtype}"
    for plugin in family_plugins(backend, config.family):
        settings += f" {plugin.group} {plugin.distribution}"
    if spec.parse_special:
        settings += " parse_special"
    if spec.generation_config == "none":  # the digest of the model covers the file
        settings += " generation_config none"
    if (spec.tool_parser, spec.reasoning_parser) != (AUTO, AUTO):
        settings += f" parsers {spec.tool_parser} {spec.reasoning_parser}"
    digest = hashlib.sha256(settings.encode()).hexdigest()[:32]
    bound = "model" if lone and spec.max_batch_size > 1 else ""
    return Described(
        backend, device[:MAX_NAME], context, chosen.model_context, chosen.bound, digest, model, slots_bound=bound
    )


def hello(spec: WorkerSpec, described: Described, incarnation: int) -> Hello:
    """Return the first frame of the worker."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        worker=spec.name,
        incarnation=incarnation,
        pid=os.getpid(),
        model=spec.model_name,
        backend=described.backend,
        device=described.device,
        slots=1 if described.slots_bound else spec.max_batch_size,
        context=described.context,
        config_digest=described.digest,
        model_digest=described.model_digest,
        model_context=described.model_context,
        context_bound=described.context_bound,
        phases=spec.role,
        draft_model=spec.draft_name,
        slots_bound=described.slots_bound,
        adapter=Path(spec.adapter).name[:MAX_NAME] if spec.adapter else "",
    )


def _scripted_digest(spec: WorkerSpec) -> str:
    """Return the name of the model's directory: a scripted model has no checkpoint."""
    return Path(spec.model_path).name[:MAX_NAME] or "scripted"


def _adapter_digest(spec: WorkerSpec, backend: str) -> str:
    """Digest of an adapter. Raises `LoadRefused` for a backend that applies none, and for files that are missing or
    wrong."""
    from workers.checkpoints.adapter_files import read_adapter
    from workers.checkpoints.checkpoint import CheckpointError, config_digest

    if backend != "mlx":
        raise LoadRefused(f"adapter: the {backend} backend applies none: take --backend mlx, or leave it out")
    try:
        read_adapter(Path(spec.adapter))
    except CheckpointError as error:
        raise LoadRefused(f"adapter: {error}") from error
    return config_digest(Path(spec.adapter))


def _computed_by(backend: str, cpu: CpuTarget, compile_only: bool) -> str:
    """Return versions, system and machine. Kernels are written for the instructions of a CPU, which determine the
    rounding; what the host computes, such as angles of rotation, depends on the system's libraries."""
    if backend not in COMPUTED_BY:
        return f"{__version__} {plugged(backend).versions()} {sys.platform} {platform.machine()}"
    versions = " ".join([__version__, *map(metadata.version, COMPUTED_BY[backend])])
    if backend != "iree":
        return f"{versions} {platform.machine()}"
    from workers.iree.device.cpu import Cpu

    chosen = Cpu.named(cpu) if compile_only else Cpu.of(cpu)
    return f"{versions} {sys.platform} {chosen.kind}"


def _device(spec: WorkerSpec, backend: str, config: "ModelConfig | LoneConfig | EncoderConfig") -> tuple[str, str]:
    """Return the device, as far as it is known without the backend's slow import, and what identifies its arithmetic.

    The arithmetic of a GPU is known only once it is opened, so each machine's GPU counts as a kind of its own.
    """
    if backend != "iree":
        device = spec.device or ("gpu" if sys.platform == "darwin" else "default")
        return device, device if device == "cpu" else f"{device} {platform.node()}"
    from workers.checkpoints.lone_config import LoneConfig
    from workers.iree.device.drivers import GENERIC_DEVICE, LOCAL_DRIVERS, choose_device, driver_of

    assert not isinstance(config, LoneConfig)  # these are for mlx
    cpus = CpuPlan.of_host(spec.workers, spec.threads, spec.threads_bind).at(spec.place)
    device, _ = choose_device(spec.device, spec.threads, config, cpus.threads)
    if driver_of(device) in LOCAL_DRIVERS:
        return device, "cpu"
    return device, device if device == GENERIC_DEVICE else f"{device} {platform.node()}"
