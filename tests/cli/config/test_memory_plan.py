"""The memory of several models, to which threads add those that they have downloaded."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from cli.config.several import memory_plan
from cli.config.several.memory_plan import MemoryPlan
from gateway.models.context_shares import ModelMemory, choose_contexts

MEMORY = ModelMemory(fixed=1, row_bytes=1, least_rows=4096, least=4096, most=8192)
ROW_BYTES = 4096
SERVER = """
import subprocess, sys
worker = "held = bytearray(b'x') * (64 << 20); print('held', flush=True); input()"
subprocess.run([sys.executable, "-c", worker])
"""
SUCCESSOR = f"""
import sys
from cli.config.several import memory_plan
from gateway.models.context_shares import ModelMemory
memory_plan.spare_bytes = lambda: 0
plan = memory_plan.MemoryPlan(1 << 40, predecessor=int(sys.argv[1]))
print(plan.add({{"a": ModelMemory(fixed=0, row_bytes={ROW_BYTES}, least_rows=8, least=8, most=1 << 20)}})["a"])
"""
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


def test_the_memory_of_an_older_server_counts_though_it_is_younger_than_the_parent_of_the_new_one() -> None:
    """The parent of a server is a shell, or systemd, which has started both."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "held\n"
        contexts = [_context_beside(process) for process in (server.pid, 0)]
        server.communicate("\n")
    held = (64 << 20) // ROW_BYTES
    assert 0.75 * held < contexts[0] < 3 * held
    assert contexts[1] == 8


def _context_beside(predecessor: int) -> int:
    """The context that a new process chooses, which has no memory but that of its predecessor."""
    command = [sys.executable, "-c", SUCCESSOR, str(predecessor)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
