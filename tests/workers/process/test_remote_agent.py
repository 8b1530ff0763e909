"""How a worker stays joined: what it does between two links to its gateway. See also
tests/gateway/fleet/test_remote.py."""

from collections.abc import Sequence
from types import SimpleNamespace

import anyio
import pytest
from structlog.testing import capture_logs

from actors.supervision.policy import RestartPolicy
from actors.supervision.worker import WorkerState
from actors.transport.endpoint import EndpointError
from actors.transport.keys import KeyPair
from actors.transport.link import CurveKeys
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from protocol.commands import Command
from workers.process import remote_agent as joining
from workers.process.remote_agent import Joining

pytestmark = pytest.mark.anyio


@pytest.fixture
def joins() -> Joining:
    own = KeyPair(bytes(range(32)))
    keys = CurveKeys(own.public, own.secret, server=own.public)
    return Joining("w", lambda endpoint, incarnation: ["false"], "tcp://127.0.0.1:9", keys)


@pytest.mark.parametrize("count", [1, MAX_FRAMES_PER_MESSAGE, MAX_FRAMES_PER_MESSAGE + 1])
async def test_all_that_a_lost_gateway_had_is_cancelled(
    joins: Joining, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Sequence[Command]] = []
    monkeypatch.setattr(joins.process, "send_nowait", sent.append)
    streams = frozenset(range(1, count + 1))
    joins._take_back(SimpleNamespace(live=streams))  # type: ignore[arg-type]  # all that is looked at
    assert {command.stream for message in sent for command in message} == streams  # type: ignore[union-attr]
    assert max(map(len, sent)) <= MAX_FRAMES_PER_MESSAGE


async def test_a_link_that_cannot_be_made_is_tried_again(joins: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, twice = 0, anyio.Event()

    def connect() -> None:
        nonlocal tried
        tried += 1
        if tried == 2:
            twice.set()
        raise EndpointError("no socket can be made")

    monkeypatch.setattr(joining, "RETRY", RestartPolicy(first_delay_s=0.001))
    monkeypatch.setattr(joins, "_connect", connect)
    joins.process = SimpleNamespace(  # type: ignore[assignment]  # all that is asked of it
        status=SimpleNamespace(hello=object(), state=WorkerState.READY)
    )
    with capture_logs() as logged:
        async with anyio.create_task_group() as group:
            group.start_soon(joins._stay_joined)
            await twice.wait()
            group.cancel_scope.cancel()
    # The key as `baton keys add` wants it.
    assert (logged[0]["reason"], logged[0]["key"]) == ("no socket can be made", KeyPair(bytes(range(32))).public_text)
