"""Which model a command is about, and what a worker must be told to run it."""

from dataclasses import dataclass
from pathlib import Path

from cli.options import CommandFailed
from cli.settings import Settings
from models import builtin_path
from protocol.bounds import MAX_NAME
from workers.checkpoints.checkpoint import CheckpointError, resolve_model
from workers.errors import LoadRefused
from workers.process.describe import describe
from workers.process.spec import WorkerSpec

BUILTIN_NAME = "baton-tiny"
SCRIPTED_NAME = "scripted"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model on this disk, and what clients call it."""

    name: str
    path: Path

    @classmethod
    def choose(cls, settings: Settings) -> "ChosenModel":
        """The model of the settings, fetched from the hub if it must be. Raises `CommandFailed` in a sentence."""
        if settings.backend == "scripted" and not settings.model:
            return cls(settings.name or SCRIPTED_NAME, Path())
        if not settings.model:
            return cls(settings.name or BUILTIN_NAME, builtin_path())
        try:
            path = resolve_model(settings.model)
        except (CheckpointError, OSError) as error:
            raise CommandFailed(str(error)) from error
        name = settings.name or _own_name(settings.model)
        if len(name) > MAX_NAME:
            raise CommandFailed(f"{name} is too long for a model's name: choose one with --name")
        return cls(name, path)


def worker_spec(settings: Settings, model: ChosenModel, worker: str = "w0", workers: int = 1) -> WorkerSpec:
    """What one of `workers` workers is told, which share the memory, and the cores unless `threads` says otherwise."""
    return WorkerSpec(
        name=worker,
        model_name=model.name,
        model_path=str(model.path),
        backend=settings.backend,
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        max_batch_size=settings.max_batch_size,
        context=settings.context,
        max_queue=settings.max_queue,
        step_tokens=settings.step_tokens,
        kv_bytes=settings.kv_bytes,
        prefix_cache=settings.prefix_cache,
        prefix_bytes=settings.prefix_bytes,
        cache_dir=settings.cache_dir,
        threads=settings.threads,
        workers=max(1, workers),
        log_level=settings.log_level,
    )


def check_model(spec: WorkerSpec) -> None:
    """Find out before any process starts what a worker could only fail at. Raises `CommandFailed` in a sentence."""
    try:
        describe(spec)
    except (LoadRefused, OSError) as error:
        raise CommandFailed(str(error)) from error


def _own_name(model: str) -> str:
    return Path(model).resolve().name if Path(model).exists() else model
