"""A model whose checkpoint is on this machine: its workers and its terms, once its context is chosen."""

import math
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Self

from msgspec.structs import replace

from cli.config.launch import worker_launches, worker_specs
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.model_settings import NEVER, ModelSettings
from cli.config.panels.lora import named_adapters
from cli.config.settings import Settings
from gateway.fleet.launch import WorkerLaunch
from gateway.models.context_shares import ModelMemory, rounded
from gateway.models.terms import ModelTerms
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe
from workers.process.startup.footprint import Footprint

KEEP_ALIVE_S = 300.0
"""Default of a model that is loaded by its first request."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model with the settings of a server that has it alone."""

    settings: Settings
    wanted: ModelSettings
    model: ChosenModel
    spec: WorkerSpec
    """The specification of one of its workers, without a choice of the context."""
    footprint: Footprint

    @classmethod
    def of(cls, settings: Settings, wanted: ModelSettings, model: ChosenModel, predecessor: int = 0) -> Self:
        """Read what describes its checkpoint. Raises `CommandFailed`, `LoadRefused` and `OSError`."""
        spec = replace(worker_spec(settings, model, workers=settings.workers), predecessor=predecessor)
        check_model(spec)
        return cls(settings, wanted, model, spec, Footprint.of(spec))

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def _count(self) -> int:
        return self.settings.workers + self.settings.standby

    @property
    def memory(self) -> ModelMemory:
        """The memory of its workers. With `memory_bytes` its context and its KV cache have what these leave."""
        found, count = self.footprint, self._count
        rows, least, most = found.rows, found.least, found.most
        if self.wanted.memory_bytes and least < most:
            left = (self.wanted.memory_bytes - found.fixed) // found.row_bytes
            least = most = left if left >= most else max(least, rounded(max(0, left)))
            rows = max(left, least)
        at_start = self.wanted.load == "start"
        return ModelMemory(count * found.fixed, count * found.row_bytes, rows, least, most, at_start)

    def spec_with(self, context: int) -> WorkerSpec:
        """The spec of a worker with this context, unless another one is set."""
        if self.spec.context or self.spec.backend == "scripted":
            return self.spec
        return replace(self.spec, chosen_context=context, kv_most=self.footprint.row_bytes * self.memory.rows(context))

    def filling(self, budget: int, context: int) -> Self:
        """This model with a KV cache that has all of a budget, up to the whole context of every slot."""
        memory = self.memory
        slots = 1 if self.footprint.alone else self.spec.max_batch_size
        room = (budget - memory.fixed) // memory.row_bytes if memory.row_bytes else 0
        rows = max(memory.rows(context), min(slots * context, room))
        return self if self.spec.kv_bytes else replaced(self, footprint=replaced(self.footprint, rows=rows))

    def specs(self, context: int, first: int) -> list[WorkerSpec]:
        """The specs of its workers, with numbers from `first` on."""
        return worker_specs(self.settings, self.model, first, self.spec_with(context))

    def launches(self, context: int, first: int) -> list[WorkerLaunch]:
        """Its workers, with numbers from `first` on."""
        on_demand = self.wanted.load == "first-use"
        return worker_launches(self.settings, self.model, first, on_demand=on_demand, chosen=self.spec_with(context))

    def terms(self, context: int) -> ModelTerms:
        """Its terms with this context."""
        described = describe(self.spec_with(context))
        configured = configured_terms(self.settings, self.wanted, self.name)
        return replaced(
            configured,
            bytes=configured.bytes or self.memory.bytes(context),
            context=described.context,
            model_context=described.model_context,
            context_bound=described.context_bound,
            backend=described.backend,
        )


def configured_terms(settings: Settings, wanted: ModelSettings, name: str) -> ModelTerms:
    """Return the terms of a model as far as they follow from the settings, without its checkpoint."""
    return ModelTerms(
        name=name,
        aliases=wanted.aliases,
        adapters=tuple(named_adapters(settings.lora_modules)),
        load=wanted.load,
        keep_alive_s=keep_alive_s(wanted),
        priority=wanted.priority,
        bytes=wanted.memory_bytes * (settings.workers + settings.standby),
        fixed=wanted.memory_bytes > 0,
        context=settings.context or None,
        quantization=quantized(settings),
        kv_dtype=settings.kv_dtype,
    )


def keep_alive_s(wanted: ModelSettings) -> float:
    """Return the seconds without a request after which a model is unloaded; infinite: never."""
    if wanted.keep_alive_s is None:
        return KEEP_ALIVE_S if wanted.load == "first-use" else math.inf
    return math.inf if wanted.keep_alive_s == NEVER else float(wanted.keep_alive_s)


def quantized(settings: Settings) -> str:
    """Return what the weights are quantized to while loading; empty if they are not."""
    return "" if settings.quantize == "none" else settings.quantize
