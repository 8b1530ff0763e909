"""The offer of a gateway to the one that takes its place."""

import json
import os
import socket
import stat
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from gateway.app import create_app
from gateway.fleet.hand_over import HandOver, SuccessorListens
from gateway.http.listener import Listener
from gateway.http.server import adopt, listen
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.actors.inbox import Inbox
from tests.gateway.harness.asgi import clients

pytestmark = pytest.mark.anyio


async def test_a_gateway_leaves_only_when_it_is_meant() -> None:
    inbox = Inbox()
    chosen = GatewaySettings(port=0)
    with listen(chosen) as listener:
        hand_over = HandOver(listener, inbox.ref)
        app = create_app(Router(chosen), chosen, hand_over=hand_over)
        async with clients(app) as opened:
            host = {"host": "localhost"}
            refused = await opened.ask("POST", "/admin/gateway/leave", {"pid": os.getpid() + 1}, **host)
            assert (refused.status, refused.error["code"]) == (409, "another_gateway")
            assert (await opened.ask("POST", "/admin/gateway/offer", {"x": 1}, **host)).status == 400
            assert inbox.messages == []
            assert (await opened.ask("POST", "/admin/gateway/leave", {"pid": os.getpid()}, **host)).status == 202
            assert inbox.messages == [SuccessorListens()]


async def test_what_is_offered_is_private_and_goes_with_its_gateway() -> None:
    chosen = GatewaySettings(port=0, flush_s=0.1)
    over = anyio.Event()
    with listen(chosen) as listener:
        hand_over = HandOver(listener, Inbox().ref)
        offer = hand_over.offer()
        assert hand_over.offer() == offer
        folders = [Path(offer.listener).parent, Path(offer.http).parent]
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700, 0o700]
        app = create_app(Router(chosen), chosen, hand_over=hand_over)
        async with anyio.create_task_group() as group:
            group.start_soon(hand_over.run, app, chosen, over)
            async with await anyio.connect_unix(offer.listener) as stream:
                _, (descriptor,) = await stream.receive_fds(1, 1)
            with adopt(descriptor, chosen) as same:
                assert same.getsockname() == listener.getsockname()
            over.set()
        assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("given_s", [0.0, 60.0], ids=["too late", "in time"])
async def test_one_successor_gets_the_socket(given_s: float) -> None:
    """Until it had its time: it may have died."""
    chosen = GatewaySettings(port=0, flush_s=0.1)
    over = anyio.Event()
    got: list[int] = []
    with listen(chosen) as listener:
        hand_over = HandOver(listener, Inbox().ref, given_s=given_s)
        app = create_app(Router(chosen), chosen, hand_over=hand_over)
        async with anyio.create_task_group() as group, clients(app) as opened:
            group.start_soon(hand_over.run, app, chosen, over)
            host = {"host": "localhost"}
            answers = [await opened.ask("POST", "/admin/gateway/offer", {}, **host)]
            offer = json.loads(answers[0].body)
            for _ in range(2):
                async with await anyio.connect_unix(offer["listener"]) as stream:
                    try:
                        _, (descriptor,) = await stream.receive_fds(1, 1)
                    except anyio.EndOfStream:
                        continue
                    got.append(descriptor)
                    os.close(descriptor)
            answers.append(await opened.ask("POST", "/admin/gateway/offer", {}, **host))
            over.set()
    assert len(got) == (1 if given_s else 2)
    assert [answer.status for answer in answers] == [202, 409 if given_s else 202]


async def test_who_asks_for_the_socket_and_dies_takes_no_gateway_along() -> None:
    chosen = GatewaySettings(port=0, flush_s=0.1)
    over = anyio.Event()
    with listen(chosen) as listener:
        hand_over = HandOver(listener, Inbox().ref)
        offer = hand_over.offer()
        app = create_app(Router(chosen), chosen, hand_over=hand_over)
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as died:
                died.connect(offer.listener)
        async with anyio.create_task_group() as group:
            group.start_soon(hand_over.run, app, chosen, over)
            async with await anyio.connect_unix(offer.listener) as stream:
                _, (descriptor,) = await stream.receive_fds(1, 1)
            os.close(descriptor)
            listener.close()  # it has left: there is nothing to give any more
            async with await anyio.connect_unix(offer.listener) as stream:
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive_fds(1, 1)
            over.set()


async def test_an_offer_that_failed_halfway_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = GatewaySettings(port=0, flush_s=0.1)
    over = anyio.Event()
    with listen(chosen) as listener:
        hand_over = HandOver(listener, Inbox().ref)
        listens = Listener.listen
        tried: list[Path] = []

        def second_fails(given: Listener, *backlog: int) -> None:
            tried.append(Path(given.getsockname()))
            if len(tried) == 2:
                raise OSError("no descriptor is left")
            listens(given, *backlog)

        monkeypatch.setattr(Listener, "listen", second_fails)
        with pytest.raises(OSError, match="no descriptor"):
            hand_over.offer()
        offer = hand_over.offer()
        assert not any(path.exists() for path in tried[:2])
        app = create_app(Router(chosen), chosen, hand_over=hand_over)
        async with anyio.create_task_group() as group:
            group.start_soon(hand_over.run, app, chosen, over)
            async with await anyio.connect_unix(offer.listener) as stream:
                _, (descriptor,) = await stream.receive_fds(1, 1)
            os.close(descriptor)
            over.set()
