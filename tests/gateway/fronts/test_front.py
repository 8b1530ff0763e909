"""A front as the gateway knows it, without its process."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from actors.system import ActorSystem
from gateway.fronts import front as front_module
from gateway.fronts.frames import FrontPulse, StopAccepting
from gateway.fronts.front import Front
from gateway.fronts.process import FrontReport
from gateway.fronts.spec import FrontSettings, FrontSpec
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


class NoProcess:
    """Takes the place of a `FrontProcess`."""

    def __init__(self, spec: FrontSpec, exchanges: Any, report: Callable[[FrontReport], None]) -> None:
        self.sent: list[Any] = []
        self.report = report

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    async def run(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError


def pulse(connections: int, *, stopped: bool) -> FrontPulse:
    return FrontPulse(connections, stopped, 0, 0.0, 0.0, 1)


async def test_a_front_that_stops_has_connections_until_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[NoProcess] = []

    def make(*arguments: Any) -> NoProcess:
        made.append(NoProcess(*arguments))
        return made[-1]

    monkeypatch.setattr(front_module, "FrontProcess", make)
    spec = FrontSpec(0, FrontSettings.of(GatewaySettings()), None, None)
    front = Front(spec, app, app, lambda count: None, lambda: None)  # type: ignore[arg-type]  # an app without conventions
    async with ActorSystem() as system:
        ref = system.spawn("front", front)
        await anyio.wait_all_tasks_blocked()
        made[0].report(pulse(0, stopped=False))
        assert front.connections == 0
        ref.tell(StopAccepting(), urgent=True)
        assert made[0].sent == [StopAccepting()]
        assert front.connections == 1, "it may have accepted one since"
        made[0].report(pulse(0, stopped=False))
        assert front.connections == 1, "that was on its way before"
        made[0].report(pulse(2, stopped=True))
        assert front.connections == 2
        made[0].report(pulse(0, stopped=True))
        assert front.connections == 0
