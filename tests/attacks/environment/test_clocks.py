"""A wall clock that jumps by a day with each look at it: no duration may depend on it."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.attacks.environment.gateway_process import Surroundings
from tests.attacks.environment.surrounded import surrounded
from tests.gateway.harness.serving import CHAT, COMPLETION
from workers.iree.build.cache import GraphCache

DAY_S = 86400.0


@pytest.mark.parametrize("jump_s", [DAY_S, 400 * 365 * DAY_S], ids=["a day", "four centuries"])
def test_a_wall_clock_that_jumps_ends_nothing(jump_s: float) -> None:
    with surrounded(Surroundings(workers=2, jump_s=jump_s)) as gateway:
        for body, path in ((COMPLETION, "/v1/completions"), (CHAT, "/v1/chat/completions")):
            for _ in range(4):
                answer = gateway.client.post(path, json=body)
                assert answer.status_code == 200, answer.text
        assert [each["restarts"] for each in gateway.workers()] == [0, 0]
        os.kill(gateway.workers()[0]["pid"], signal.SIGKILL)
        gateway.ready()
        assert gateway.client.get("/health/ready").status_code == 200
        assert gateway.client.get("/metrics").status_code == 200


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S], ids=["back", "forward"])
def test_a_graph_that_is_being_compiled_survives_a_jump(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: another process that made room removed what it took for the leftovers of a dead one."""
    now = time.time()

    def write_other(file: Path) -> None:
        file.write_bytes(b"other")

    def make(file: Path) -> None:
        monkeypatch.setattr(time, "time", lambda: now + jump_s)
        GraphCache(tmp_path).get("other", write_other)
        file.write_bytes(b"first")

    assert GraphCache(tmp_path).get("first", make).read_bytes() == b"first"
