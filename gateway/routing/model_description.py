"""Describes the models of a gateway, for the lists of all dialects and for operators."""

import math
from dataclasses import dataclass

from gateway.routing.model_catalog import CatalogEntry, ModelState
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.events import Capabilities


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model at one moment."""

    id: str
    aliases: tuple[str, ...]
    state: ModelState
    bytes: int
    """Memory that it takes when it is loaded; 0 if unknown."""
    last_used_s: float | None
    """Seconds since its last request; None before the first, and for a model of remote workers alone."""
    workers: int
    backend: str | None
    context: int | None
    keep_alive_s: float | None
    """Seconds without a request after which it is unloaded; None: never for that reason."""
    quantization: str
    capabilities: Capabilities | None
    """Features that all workers have which have loaded it; None before the first."""


def describe(pool: WorkerPool, name: str, now: float) -> ModelDescription:
    """Describe a model by its own name. `now` is the loop's time."""
    handles = pool.of(name)
    entry = pool.catalog.find(name) or _of_workers(name, handles)
    state = ModelState.LOADED if any(handle.ready for handle in handles) else entry.state
    backends = [handle.status.hello.backend for handle in handles if handle.status.hello is not None]
    known = [handle.capabilities for handle in handles if handle.capabilities is not None]
    return ModelDescription(
        id=name,
        aliases=entry.aliases,
        state=state,
        bytes=entry.bytes,
        last_used_s=round(now - entry.last_used, 3) if entry.last_used else None,
        workers=len(handles),
        backend=next(iter(backends), entry.backend) or None,
        context=pool.context(name),
        keep_alive_s=None if math.isinf(entry.keep_alive_s) else entry.keep_alive_s,
        quantization=entry.quantization,
        capabilities=_common(known) if known else None,
    )


def _of_workers(name: str, handles: list[WorkerHandle]) -> CatalogEntry:
    """The entry of a model whose workers start by themselves."""
    comes = any(handle.status.running for handle in handles)
    return CatalogEntry(name, state=ModelState.LOADING if comes else ModelState.UNLOADED)


def _common(known: list[Capabilities]) -> Capabilities:
    return Capabilities(**{name: all(getattr(each, name) for each in known) for name in Capabilities.__struct_fields__})
