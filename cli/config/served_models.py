"""The models that a server's settings name, with the workers that run them and the memory that they may take."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from cli.config.errors import CommandFailed
from cli.config.launch import check_prefill_workers, check_sparse, worker_launches
from cli.config.model import ChosenModel, check_model, tier_bytes, with_chosen_context, worker_spec
from cli.config.model_settings import ModelSettings
from cli.config.panels.lora import named_adapters
from cli.config.settings import Settings, flag
from cli.config.several.hub_model import HubModel, absent_hub_model
from cli.config.several.memory_plan import MemoryPlan
from cli.config.several.planned_model import PlannedModel, quantized
from gateway.fleet.launch import WorkerLaunch
from gateway.models.terms import ModelTerms
from workers.errors import LoadRefused
from workers.host.memory import machine_bytes
from workers.process.startup.tier_reserve import tier_reserve

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
    def of(cls, settings: Settings, *, predecessor: int = 0) -> "ServedModels":
        """Check every model that the settings name, and download those of the hub that are loaded at the start.
        `predecessor` is the process of a server that ends when this one is ready, or 0. Raises `CommandFailed`."""
        check_sparse(settings)
        if not settings.models:
            return _single(settings, predecessor)
        own = settings.standby or settings.prefill_workers
        if settings.model or settings.name or settings.workers != 1 or own:
            names = ("model", "name", "workers", "standby", "prefill_workers")
            wrong = next(name for name in names if name in settings.sources)
            raise CommandFailed(
                f"{settings.sources[wrong]}: not with {settings.sources['models']}, whose models have their own"
            )
        return _several(settings, predecessor)


def _single(settings: Settings, predecessor: int) -> ServedModels:
    """One model, which is loaded at the start and stays."""
    check_prefill_workers(settings)
    if not settings.workers and not settings.standby:
        return ServedModels()
    model = ChosenModel.choose(settings)
    if not settings.memory_budget:
        spec = replace(worker_spec(settings, model, workers=settings.workers), predecessor=predecessor)
        check_model(spec)
        launches = worker_launches(settings, model, chosen=with_chosen_context(spec))
        return ServedModels(
            launches,
            [
                ModelTerms(
                    name=model.name,
                    adapters=tuple(spec.lora_modules),
                    quantization=quantized(settings),
                    kv_dtype=settings.kv_dtype,
                )
            ],
        )
    with _named(""):
        planned = PlannedModel.of(settings, ModelSettings(load="start"), model, predecessor)
        plan = MemoryPlan(settings.memory_budget, predecessor=predecessor, reserved=_reserved(settings))
        (context,) = plan.add({"": planned.memory}).values()
        planned = planned.filling(settings.memory_budget, context)
        terms = planned.terms(context)
    _check_budget("MODEL", [terms], settings.memory_budget)
    return ServedModels(planned.launches(context, 0), [terms], settings.memory_budget)


def _several(settings: Settings, predecessor: int) -> ServedModels:
    source = settings.sources["models"]
    reserved = _reserved(settings)
    budget = settings.memory_budget or int(SHARE * machine_bytes()) - reserved
    plan = MemoryPlan(budget, predecessor=predecessor, reserved=reserved)
    models: list[PlannedModel | HubModel] = []
    workers = 0
    for number, each in enumerate(settings.models):
        at = f"{source}[{number}]"
        with _named(at):
            own = _own_settings(settings, each, at)
            check_prefill_workers(own)
            absent = absent_hub_model(own) if each.load == "first-use" else None
            if absent is not None:
                models.append(HubModel(own, each, absent, plan, workers))
            else:
                models.append(PlannedModel.of(own, each, ChosenModel.choose(own), predecessor))
        workers += each.workers + each.standby
    _check_names(
        source,
        [(each.name, each.wanted.aliases, tuple(named_adapters(each.settings.lora_modules))) for each in models],
    )
    if workers > MAX_WORKERS:
        raise CommandFailed(f"{source}: {workers} workers in all are more than {MAX_WORKERS}")
    contexts = plan.add({each.name: each.memory for each in models if isinstance(each, PlannedModel)})
    launches: list[WorkerLaunch] = []
    terms: list[ModelTerms] = []
    for number, model in enumerate(models):
        with _named(f"{source}[{number}]"):
            if isinstance(model, PlannedModel):
                terms.append(model.terms(contexts[model.name]))
                launches += model.launches(contexts[model.name], len(launches))
            else:
                terms.append(model.terms())
                launches += model.launches()
    _check_budget(source, terms, budget)
    return ServedModels(launches, terms, budget)


def _reserved(settings: Settings) -> int:
    """The memory of the prefix tier, which models cannot have."""
    return tier_reserve(tier_bytes(settings), settings.prefix_cache_dir)


@contextmanager
def _named(at: str) -> Iterator[None]:
    """Begin errors with the model that they are about. Raises `CommandFailed`."""
    try:
        yield
    except (CommandFailed, LoadRefused, OSError) as error:
        text = str(error)
        raise CommandFailed(f"{at}: {text}" if at and not text.startswith(at) else text) from error


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
            "prefill_workers": model.prefill_workers,
            "models": (),
        }
    )
    return changed.from_sources(settings.sources | {name: f"{at}.{name}" for name in own})


def _check_names(source: str, named: Sequence[tuple[str, Sequence[str], Sequence[str]]]) -> None:
    """Raises `CommandFailed` for a name that two models or adapters have, and for one that a worker must not have."""
    taken: dict[str, str] = {}
    for number, (own, aliases, adapters) in enumerate(named):
        others = [("aliases", aliases), ("lora_modules", adapters)]
        for field, name in [("name", own), *((field, name) for field, names in others for name in names)]:
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
