"""The models that requests may name, by their own names, their aliases and those of their adapters."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from gateway.errors import ModelRequired, RefusalCode, RequestError
from gateway.generation.request import GenerationRequest
from gateway.routing.adapters.registry import is_version
from gateway.routing.model_description import ModelDescription, capabilities, describe
from gateway.routing.worker_pool import WorkerPool
from protocol.events import Capabilities


class NamedModels:
    """Reads the names in the pool and its catalog, and what is known of the models. Changes nothing."""

    def __init__(self, pool: WorkerPool, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock

    def names(self) -> list[str]:
        """Own names of the models, in the order in which they were added."""
        return self._pool.models()

    def canonical(self, name: str) -> str:
        """The own name of the model with this name or alias, or with an adapter of this name; the name itself if there
        is none."""
        return self._pool.parent(name) or self._pool.catalog.canonical(name)

    def resolved(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with the own name of its model, and with the adapter that it named."""
        if (model := self.canonical(request.model)) == request.model:
            return request
        adapter = "" if self._pool.parent(request.model) is None else request.model
        return dataclasses.replace(request, model=model, adapter=adapter)

    def on_workers(self, adapter: str) -> str:
        """The name on workers of the adapter that requests name so; empty for none."""
        version = self._pool.runtime.version(adapter)
        return adapter if version is None else version.wire

    def adapter_digest(self, model: str, adapter: str) -> str:
        """Return the name of an adapter on workers with a digest that tells its weights from others: of its files if it
        was loaded at run time, and otherwise of the model and all adapters that were loaded with it, as a worker has
        it. Empty for no adapter."""
        if not adapter or is_version(adapter):
            return adapter
        hellos = (handle.status.hello for handle in self._pool.of(model))
        return f"{adapter}@{next((each.model_digest for each in hellos if each is not None), '')}"

    def with_adapters(self, models: Iterable[str]) -> list[str]:
        """Return the names of models, each followed by those of its adapters."""
        return [name for model in models for name in (model, *self._pool.adapters(model))]

    def describe(self, model: str) -> ModelDescription:
        """Describe a model by its own name, or the model of an adapter."""
        return describe(self._pool, self._pool.parent(model) or model, self._clock())

    def capabilities(self, model: str) -> Capabilities | None:
        """The features of a model by its own name, or of an adapter; None before a worker has loaded it."""
        return capabilities(self._pool, self._pool.parent(model) or model)

    def named_or_only(self, model: str | None) -> str:
        """Return the model that a body names, or the own name of the only one. Raises `ModelRequired` if it names none
        and there are several or none."""
        if model is not None:
            return model
        models = self.names()
        if len(models) != 1:
            raise ModelRequired
        return models[0]

    def no_model(self, name: str, *, field: str = "model", among: Sequence[str] | None = None) -> RequestError:
        """The error for an unknown model, with the names of those that exist, or those `among` which the client may
        choose."""
        known = self.with_adapters(self.names() if among is None else among)
        names = ", ".join(map(repr, dict.fromkeys(known))) or "none"
        text = f"there is no model {name[:128]!r}; available: {names}"
        return RequestError(RefusalCode.MODEL_NOT_FOUND, text, field=field)
