"""The memory of several models, to which threads add those that they have downloaded."""

import threading
from collections.abc import Sequence

import pytest

from cli.config.several import memory_plan
from cli.config.several.memory_plan import MemoryPlan
from gateway.models.context_shares import ModelMemory, choose_contexts

MEMORY = ModelMemory(fixed=1, row_bytes=1, least_rows=4096, least=4096, most=8192)
WAIT_S = 0.1
"""Time for a second thread to get in, which it must not."""


def test_a_thread_that_adds_a_model_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryPlan(1 << 20)
    found: dict[str, int] = {}
    second = threading.Thread(target=lambda: found.update(plan.add({"b": MEMORY})))

    def choose(models: Sequence[ModelMemory], budget: float) -> list[int]:
        if len(models) == 1:
            second.start()
            second.join(WAIT_S)
        return choose_contexts(models, budget)

    monkeypatch.setattr(memory_plan, "choose_contexts", choose)
    found |= plan.add({"a": MEMORY})
    second.join()
    assert found == {"a": 8192, "b": 8192}
