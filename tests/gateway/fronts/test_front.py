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
from gateway.fronts.inbox import GATEWAY_FRAMES
from gateway.fronts.process import FrontReport
from gateway.fronts.spec import FrontSettings, FrontSpec
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


class NoProcess:
    """Takes the place of a `FrontProcess`."""

    def __init__(
        self, spec: FrontSpec, exchanges: Any, report: Callable[[FrontReport], None], turn_frames: int
    ) -> None:
        self.sent: list[Any] = []
        self.report = report
        self.turn_frames = turn_frames

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    async def run(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[NoProcess]:
    """The processes of fronts so far."""
    made: list[NoProcess] = []

    def make(*arguments: Any) -> NoProcess:
        made.append(NoProcess(*arguments))
        return made[-1]

    monkeypatch.setattr(front_module, "FrontProcess", make)
    return made


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError


def pulse(connections: int, *, stopped: bool) -> FrontPulse:
    return FrontPulse(connections, stopped, 0, 0.0, 0.0, 1)


async def test_a_front_that_stops_has_connections_until_it_says_otherwise(made: list[NoProcess]) -> None:
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


async def test_fronts_share_the_frames_of_a_turn(made: list[NoProcess]) -> None:
    spec = FrontSpec(0, FrontSettings.of(GatewaySettings()), None, None)
    async with ActorSystem() as system:
        for fronts in (1, 5, 64, 100):
            front = Front(spec, app, app, lambda count: None, lambda: None, fronts=fronts)  # type: ignore[arg-type]
            system.spawn(f"front of {fronts}", front)
        await anyio.wait_all_tasks_blocked()
    assert [each.turn_frames for each in made] == [GATEWAY_FRAMES, GATEWAY_FRAMES // 5, 1, 1]
