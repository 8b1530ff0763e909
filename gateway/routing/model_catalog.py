"""The models that the gateway knows: their names, what is known without a worker, and whether they are loaded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class ModelState(StrEnum):
    """The state of a model."""

    UNLOADED = "unloaded"
    DOWNLOADING = "downloading"
    """It is not loaded, and its checkpoint is fetched from the hub, since a request needs it."""
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"
    """It could not be loaded, or its workers were given up."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The requests of a model at one moment."""

    live: int = 0
    """Sequences and queries that a worker has, or had before it was lost."""
    waiting: int = 0
    """New ones that wait."""
    last_used: float = 0.0
    """Time of the event loop at which one ended last; 0: none has."""

    @property
    def busy(self) -> bool:
        return self.live > 0 or self.waiting > 0


@dataclass(slots=True, eq=False)
class CatalogEntry:
    """A model of this server. Its names are fixed; what follows is changed by `gateway.models.loader` alone."""

    name: str
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    """Those that its requests may name in its place."""
    context: int | None = None
    """Tokens of a prompt and its answer, as long as no worker reports it."""
    model_context: int | None = None
    """The context that the model itself declares, likewise."""
    context_bound: str = ""
    """Why `context` is less, likewise."""
    backend: str = ""
    quantization: str = ""
    kv_dtype: str = "auto"
    state: ModelState = ModelState.UNLOADED
    on_demand: bool = False
    """It is not loaded before the first request for it."""
    loads: bool = False
    """A request makes it load."""
    held: bool = False
    """Its new requests wait, although a worker is ready."""
    operated: bool = False
    """An operation on its workers is under way."""
    problem: str = ""
    """Why it could not be loaded; empty if it could, or was never tried."""
    bytes: int = 0
    """Memory that it takes when it is loaded."""
    last_used: float = 0.0
    """Time of the event loop of its last request; 0: there was none."""
    keep_alive_s: float = math.inf

    @property
    def absent(self) -> bool:
        """It is not loaded, or will not be in a moment."""
        return self.state in (ModelState.UNLOADED, ModelState.DOWNLOADING, ModelState.UNLOADING)


class ModelCatalog:
    """The entries by name, and the names that stand for them. Those of models that only remote workers serve have
    none."""

    def __init__(self) -> None:
        self._entries: dict[str, CatalogEntry] = {}
        self._aliases: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        """The models of adapters."""

    def add(self, entry: CatalogEntry) -> None:
        """Raises `ValueError` for a name that is taken."""
        for name in (entry.name, *entry.aliases, *entry.adapters):
            if name in self._entries or name in self._aliases or name in self._parents:
                raise ValueError(f"two models have the name {name!r}")
        self._entries[entry.name] = entry
        self._aliases |= dict.fromkeys(entry.aliases, entry.name)
        self._parents |= dict.fromkeys(entry.adapters, entry.name)

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self._entries.values())

    @property
    def loads_on_demand(self) -> bool:
        """The requests of a model are admitted while it is not loaded, and wait for it."""
        between = (ModelState.DOWNLOADING, ModelState.LOADING, ModelState.UNLOADING)
        return any(
            each.loads and (each.state is ModelState.UNLOADED or (each.on_demand and each.state in between))
            for each in self
        )

    def find(self, name: str) -> CatalogEntry | None:
        """The entry of a model by its own name."""
        return self._entries.get(name)

    def canonical(self, name: str) -> str:
        """The own name of the model with this name or alias; the name itself if there is none."""
        return self._aliases.get(name, name)

    def parent(self, adapter: str) -> str | None:
        """The own name of the model that has an adapter; None if none does."""
        return self._parents.get(adapter)

    def adapters(self, model: str) -> tuple[str, ...]:
        """The adapters of a model."""
        entry = self._entries.get(model)
        return () if entry is None else entry.adapters

    def aliases(self, model: str) -> tuple[str, ...]:
        """Further names of a model."""
        entry = self._entries.get(model)
        return () if entry is None else entry.aliases

    def loads(self, model: str) -> bool:
        """True for a model that has no worker and gets one when a request waits for it."""
        entry = self._entries.get(model)
        return entry is not None and entry.loads

    def held(self, model: str) -> bool:
        """True for a model whose new requests have to wait."""
        entry = self._entries.get(model)
        return entry is not None and entry.held

    def operated(self, model: str) -> bool:
        """True for a model whose workers an operation stops and starts."""
        entry = self._entries.get(model)
        return entry is not None and entry.operated

    def problem(self, model: str) -> str:
        """Why a model could not be loaded; empty if it could."""
        entry = self._entries.get(model)
        return "" if entry is None else entry.problem

    def context(self, model: str) -> int | None:
        """Its context, as far as it is known without a worker."""
        entry = self._entries.get(model)
        return None if entry is None else entry.context
