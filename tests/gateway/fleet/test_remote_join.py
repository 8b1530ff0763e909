"""When a gateway refuses to listen for workers at all."""

import socket
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import zmq
from structlog.testing import capture_logs

from actors.transport.allow_list import AllowList
from actors.transport.join_tokens import JoinTokens
from actors.transport.keys import from_z85, make_gateway_key
from actors.transport.rejections import Rejections
from gateway.fleet.remote_join import RemoteJoin
from gateway.http.listener import BindError
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.actors.inbox import Inbox

pytestmark = pytest.mark.anyio


def joins(folder: Path, address: str = "tcp://127.0.0.1:0", *, public: bool = False) -> RemoteJoin:
    settings = GatewaySettings(listen_workers=address, keys_dir=str(folder), allow_public_workers=public)
    return RemoteJoin(settings, Rejections())


def prepare(folder: Path) -> None:
    make_gateway_key(folder)
    AllowList(folder).add("gpu1", from_z85(zmq.curve_keypair()[0].decode()))


def test_keys_are_not_left_out() -> None:
    with pytest.raises(GatewaySettingsError, match="listen_workers needs keys_dir"):
        GatewaySettings(listen_workers="tcp://127.0.0.1:0")


async def test_it_does_not_listen_without_a_key_that_is_private_and_with_an_invalid_list(tmp_path: Path) -> None:
    with pytest.raises(BindError, match=r"gateway\.key cannot be read"):
        joins(tmp_path)
    key = tmp_path / "gateway.key"
    make_gateway_key(tmp_path)
    AllowList(tmp_path).add("gpu1", from_z85(zmq.curve_keypair()[0].decode()))
    listed = tmp_path / "workers" / "gpu1.pub"
    text = listed.read_text()
    listed.write_text("half")
    with pytest.raises(BindError, match=r"no worker may join: gpu1\.pub: a key has 64"):
        joins(tmp_path)
    listed.write_text(text)
    key.chmod(0o644)
    with pytest.raises(BindError, match="can be opened by others"):
        joins(tmp_path)
    key.chmod(0o600)
    assert joins(tmp_path).port == 0


async def test_a_public_address_wants_to_be_meant(tmp_path: Path) -> None:
    prepare(tmp_path)
    with pytest.raises(BindError, match="--allow-public-workers"):
        joins(tmp_path, "tcp://0.0.0.0:7000")
    joins(tmp_path, "tcp://0.0.0.0:7000", public=True)


async def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    prepare(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = joins(tmp_path, f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BindError, match="cannot listen for workers"):
            second.listen()
        assert second.port == 0


async def test_who_leaves_waits_for_no_port(tmp_path: Path) -> None:
    prepare(tmp_path)
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    second = joins(tmp_path, f"tcp://127.0.0.1:{port}")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(second.run, Inbox().ref)
            await anyio.lowlevel.checkpoint()
            second.shut()
            taken.close()
    assert second.port == 0


async def test_an_empty_list_is_logged_unless_a_token_can_be_used(tmp_path: Path) -> None:
    make_gateway_key(tmp_path)
    with capture_logs() as lines:
        joins(tmp_path)
        assert [line["event"] for line in lines] == ["nobody_may_join"]
        JoinTokens(tmp_path).make("gpu1")
        joins(tmp_path)
    assert len(lines) == 1


async def test_what_cannot_be_forgotten_is_logged(tmp_path: Path) -> None:
    prepare(tmp_path)
    JoinTokens(tmp_path).make("gpu2")
    joining = joins(tmp_path)
    with capture_logs() as lines:
        for name in ("gpu1", "gpu2", "gpu3"):
            joining.forget(name)
        assert lines == []
        assert AllowList(tmp_path).read().names == JoinTokens(tmp_path).read().names == {}
        joining.forget("../x")
    assert [line["event"] for line in lines] == ["key_not_removed"]
