"""The memory budget of a server, and the contexts of its models within it."""

import os
import threading
from collections.abc import Mapping
from dataclasses import replace

from gateway.models.context_shares import ModelMemory, choose_contexts
from workers.host.memory import SHARE, leaving_bytes, spare_bytes


class MemoryPlan:
    """Owns what each model takes. Contexts are chosen once: the workers of all incarnations have the same. Threads may
    add models at the same time."""

    def __init__(self, budget: float, *, predecessor: int = 0, reserved: int = 0) -> None:
        """`budget` in bytes. More than a share of the memory that is free now, or will be when the `predecessor` has
        ended, less the `reserved` bytes of the prefix tier, is not given to contexts that are left open. This is the
        process of the server."""
        free = spare_bytes() + leaving_bytes(predecessor, os.getpid()) - reserved
        self._available = min(budget, SHARE * max(0, free))
        self._models: dict[str, ModelMemory] = {}
        self._lock = threading.Lock()

    def add(self, models: Mapping[str, ModelMemory]) -> dict[str, int]:
        """Choose the contexts of models by their names, beside those that were added before."""
        with self._lock:
            self._models |= models
            contexts = dict(zip(self._models, choose_contexts([*self._models.values()], self._available), strict=True))
            for name in models:
                memory, context = self._models[name], contexts[name]
                self._models[name] = replace(memory, least_rows=memory.rows(context), least=context, most=context)
            return {name: contexts[name] for name in models}
