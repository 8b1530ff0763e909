"""The terms under which a server keeps one of its models."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

LoadTime = Literal["start", "first-use"]


class ModelUnavailable(Exception):
    """Raised when a model cannot be prepared, such as by a download that fails. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTerms:
    """A model that workers of this server run."""

    name: str
    aliases: tuple[str, ...] = ()
    """Further names that clients may use."""
    adapters: tuple[str, ...] = ()
    """The adapters that its requests may name in its place."""
    load: LoadTime = "start"
    """Loaded when the server starts, or when a request asks for it."""
    keep_alive_s: float = math.inf
    """Seconds without a request after which it is unloaded; infinite: never for that reason."""
    priority: int = 0
    """Models of a lower priority are unloaded first when another one needs their memory."""
    bytes: int = 0
    """Memory of all of its workers together: weights and full KV caches, as far as that is known before it is loaded.
    0 is unknown, and takes no part of the budget until a worker has reported it."""
    fixed: bool = False
    """`bytes` holds whatever its workers report."""
    context: int | None = None
    """Tokens of a prompt and its answer, as far as that is known before a worker runs."""
    model_context: int | None = None
    """The context that the model itself declares, likewise."""
    context_bound: str = ""
    """Why `context` is less than that, as in `Hello.context_bound`."""
    backend: str = ""
    quantization: str = ""
    kv_dtype: str = "auto"
    """Type of the KV cache; `auto` is the model's."""
    prepare: "Callable[[], Awaitable[ModelTerms]] | None" = None
    """Called before the model is loaded for the first time, and again after a load that failed: makes its checkpoint
    available on this machine, and returns its terms as they are known then. Raises `ModelUnavailable`."""


def most_workers(terms: Sequence[tuple[int, int]], budget: float) -> int:
    """Return an upper bound of the workers that run at once within the budget. Each model has so many workers, which
    take so many bytes together."""
    left, total = budget, 0
    for workers, needed in sorted(terms, key=lambda each: each[1] / max(1, each[0])):
        if needed <= left:
            left, total = left - needed, total + workers
        else:
            return total + math.ceil(workers * left / needed)
    return total
