"""The models that a server's settings name, with the workers that run them and the memory that they may take."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cli.config.errors import CommandFailed
from cli.config.launch import worker_launches
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.model_settings import NEVER, ModelSettings
from cli.config.settings import Settings, flag
from gateway.fleet.launch import WorkerLaunch
from gateway.models.terms import ModelTerms
from workers.checkpoints.json_files import CheckpointError
from workers.errors import LoadRefused
from workers.host.memory import machine_bytes
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe

KEEP_ALIVE_S = 300.0
"""Default of a model that is loaded by its first request."""
SHARE = 0.9
"""Share of the machine's memory for the models, unless `memory_budget` says otherwise."""
MAX_WORKERS = 256
"""Workers of all models of one server."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Everything that the gateway needs to know of its models."""

    launches: Sequence[WorkerLaunch] = ()
    terms: Sequence[ModelTerms] = ()
    budget: float = math.inf
    """Bytes of all loaded models."""

    @classmethod
    def of(cls, settings: Settings) -> "ServedModels":
        """Check every model that the settings name, which downloads those of the hub. Raises `CommandFailed`."""
        if not settings.models:
            return _single(settings)
        if settings.model or settings.name or settings.workers != 1 or settings.standby:
            wrong = next(name for name in ("model", "name", "workers", "standby") if name in settings.sources)
            raise CommandFailed(
                f"{settings.sources[wrong]}: not with {settings.sources['models']}, whose models have their own"
            )
        return _several(settings)


def _single(settings: Settings) -> ServedModels:
    """One model, which is loaded at the start and stays."""
    if not settings.workers and not settings.standby:
        return ServedModels()
    model = ChosenModel.choose(settings)
    spec = worker_spec(settings, model)
    check_model(spec)
    launches = worker_launches(settings, model)
    budget = settings.memory_budget or math.inf
    needed = _estimated(spec, describe(spec).context) * len(launches) if settings.memory_budget else 0
    terms = ModelTerms(name=model.name, bytes=needed, quantization=_quantized(spec))
    _check_budget("MODEL", [terms], budget)
    return ServedModels(launches, [terms], budget)


def _several(settings: Settings) -> ServedModels:
    source = settings.sources["models"]
    launches: list[WorkerLaunch] = []
    terms: list[ModelTerms] = []
    for number, each in enumerate(settings.models):
        at = f"{source}[{number}]"
        try:
            own = _own_settings(settings, each, at)
            model = ChosenModel.choose(own)
            own = own.model_copy(update={"context": _context(own, model)})
            spec = worker_spec(own, model)
            check_model(spec)
            terms.append(_terms(each, spec))
        except (CommandFailed, CheckpointError, LoadRefused) as error:
            text = str(error)
            raise CommandFailed(text if text.startswith(at) else f"{at}: {text}") from error
        launches += worker_launches(own, model, first=len(launches), on_demand=each.load == "first-use")
    _check_names(source, terms)
    if len(launches) > MAX_WORKERS:
        raise CommandFailed(f"{source}: {len(launches)} workers in all are more than {MAX_WORKERS}")
    budget = settings.memory_budget or int(SHARE * machine_bytes())
    _check_budget(source, terms, budget)
    return ServedModels(launches, terms, budget)


def _own_settings(settings: Settings, model: ModelSettings, at: str) -> Settings:
    """The settings of a server with this model alone."""
    own = model.own
    changed = settings.model_copy(
        update={
            **own,
            "model": model.path,
            "name": model.name,
            "workers": model.workers,
            "standby": model.standby,
            "models": (),
        }
    )
    return changed.from_sources(settings.sources | {name: f"{at}.{name}" for name in own})


def _context(settings: Settings, model: ChosenModel) -> int:
    """The context of a model that shares the memory with others: its own up to `DEFAULT_CONTEXT`, unless it is set. It
    does not depend on the memory that happens to be free. Raises `CheckpointError` and `LoadRefused`."""
    if settings.backend == "scripted":
        return settings.context
    from workers.checkpoints.checkpoint import ModelConfig  # a slow import

    return ModelConfig.from_dir(model.path).choose_context(settings.context)


def _terms(model: ModelSettings, spec: WorkerSpec) -> ModelTerms:
    described = describe(spec)
    return ModelTerms(
        name=spec.model_name,
        aliases=model.aliases,
        load=model.load,
        keep_alive_s=_keep_alive_s(model),
        priority=model.priority,
        bytes=(model.memory_bytes or _estimated(spec, described.context)) * (model.workers + model.standby),
        fixed=model.memory_bytes > 0,
        context=described.context,
        backend=described.backend,
        quantization=_quantized(spec),
    )


def _keep_alive_s(model: ModelSettings) -> float:
    """The seconds without a request after which it is unloaded; infinite: never."""
    if model.keep_alive_s is None:
        return KEEP_ALIVE_S if model.load == "first-use" else math.inf
    return math.inf if model.keep_alive_s == NEVER else float(model.keep_alive_s)


def _estimated(spec: WorkerSpec, context: int) -> int:
    """The bytes of one worker; 0 for a scripted one. Raises `CheckpointError`."""
    if spec.backend == "scripted":
        return 0
    from pathlib import Path

    from workers.checkpoints.memory_estimate import estimate_bytes  # a slow import

    return estimate_bytes(
        Path(spec.model_path),
        dtype=spec.dtype,
        quantize=spec.quantize,
        slots=spec.max_batch_size,
        context=context,
        kv_bytes=spec.kv_bytes,
    )


def _quantized(spec: WorkerSpec) -> str:
    return "" if spec.quantize == "none" else spec.quantize


def _check_names(source: str, terms: Iterable[ModelTerms]) -> None:
    """Raises `CommandFailed` for a name that two models have, and for one that a worker must not have."""
    taken: dict[str, str] = {}
    for number, each in enumerate(terms):
        fields = {"name": [each.name], "aliases": each.aliases}
        for field, name in ((field, name) for field, names in fields.items() for name in names):
            at = f"{source}[{number}].{field}"
            if not name.isprintable():
                raise CommandFailed(f"{at}: {name!r} has control characters")
            if name in taken:
                raise CommandFailed(f"{at}: {name!r} is a name of {taken[name]} already")
            taken[name] = at


def _check_budget(source: str, terms: Sequence[ModelTerms], budget: float) -> None:
    """Raises `CommandFailed` for a model that never fits, and for those at the start that do not fit together."""
    for number, each in enumerate(terms):
        if each.bytes > budget:
            raise CommandFailed(
                f"{source}[{number}]: {each.name} takes {each.bytes} bytes, more than {flag('memory_budget')} has, "
                f"{budget:.0f}: lower its context, max_batch_size, kv_bytes or workers, or quantize it"
            )
    first = [each for each in terms if each.load == "start"]
    if (needed := sum(each.bytes for each in first)) > budget:
        names = ", ".join(each.name for each in first)
        raise CommandFailed(
            f"{source}: {names} take {needed} bytes together, more than {flag('memory_budget')} has, {budget:.0f}: "
            "load one of them on first-use"
        )
