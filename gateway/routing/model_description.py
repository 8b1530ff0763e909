"""Describes the models of a gateway, for the lists of all dialects and for operators."""

import math
from typing import Any

from msgspec import Struct

from gateway.routing.model_catalog import CatalogEntry, ModelState
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.events import Capabilities


class ModelDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the server."""

    id: str
    aliases: tuple[str, ...]
    state: ModelState
    problem: str | None
    """Why it could not be loaded, while requests are refused for it."""
    bytes: int
    """Memory that it takes when it is loaded; 0 if unknown."""
    last_used_s: float | None
    """Seconds since its last request; null before the first, and for a model of remote workers alone."""
    workers: int
    backend: str | None
    context: int | None
    model_context: int | None
    """The context of the checkpoint."""
    context_bound: str | None
    """By what `context` is less; null if it is not."""
    keep_alive_s: float | None
    """Seconds without a request after which it is unloaded; null: it stays."""
    quantization: str
    """As the server's settings have it; empty: that of the checkpoint."""
    kv_dtype: str
    """Type of the KV cache, likewise; `auto` is the model's."""
    draft_model: str | None
    """The model that drafts tokens for it, on any of its workers."""
    slots: int | None
    """Sequences that one of its workers computes at once; null before the first worker."""
    slots_bound: str | None
    """By what `slots` are fewer than the settings have; null if they are not."""
    adapter: str | None
    """The LoRA adapter that is applied to it, by the name of its directory; null if there is none."""
    adapters: tuple[str, ...]
    """The LoRA adapters that its requests may name."""


def describe(pool: WorkerPool, name: str, now: float) -> ModelDescription:
    """Describe a model by its own name. `now` is the loop's time."""
    handles = pool.of(name)
    entry = pool.catalog.find(name) or _of_workers(name, handles)
    state = ModelState.LOADED if any(handle.ready for handle in handles) else entry.state
    hellos = [handle.status.hello for handle in handles if handle.status.hello is not None]
    model_context, context_bound = pool.context_terms(name)
    return ModelDescription(
        id=name,
        aliases=entry.aliases,
        state=state,
        problem=entry.problem or None if state is ModelState.FAILED else None,
        bytes=entry.bytes,
        last_used_s=round(now - entry.last_used, 3) if entry.last_used else None,
        workers=len(handles),
        backend=next((hello.backend for hello in hellos), entry.backend) or None,
        context=pool.context(name),
        model_context=model_context,
        context_bound=context_bound,
        keep_alive_s=None if math.isinf(entry.keep_alive_s) else entry.keep_alive_s,
        quantization=entry.quantization,
        kv_dtype=entry.kv_dtype,
        draft_model=next((hello.draft_model for hello in hellos if hello.draft_model), None),
        slots=min((hello.slots for hello in hellos), default=None),
        slots_bound=next((hello.slots_bound for hello in hellos if hello.slots_bound), None),
        adapter=next((hello.adapter for hello in hellos if hello.adapter), None),
        adapters=pool.adapters(name),
    )


def capabilities(pool: WorkerPool, name: str) -> Capabilities | None:
    """Return the features that all workers of a model have which have loaded it; None before the first."""
    known = [handle.capabilities for handle in pool.of(name) if handle.capabilities is not None]
    if not known:
        return None
    common = {name: _common([getattr(one, name) for one in known]) for name in Capabilities.__struct_fields__}
    return Capabilities(**common)


def _common(values: list[Any]) -> Any:
    """Return what all workers have of a feature: a number or names only if they are equal."""
    if isinstance(values[0], bool):
        return all(values)
    return values[0] if all(value == values[0] for value in values) else type(values[0])()


def _of_workers(name: str, handles: list[WorkerHandle]) -> CatalogEntry:
    """The entry of a model whose workers start by themselves."""
    comes = any(handle.status.running for handle in handles)
    return CatalogEntry(name, state=ModelState.LOADING if comes else ModelState.UNLOADED)
