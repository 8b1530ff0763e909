"""`baton worker`: the settings that it needs, its keys, and a process that joins and serves."""

import json
import signal
from pathlib import Path

import anyio
import httpx
import pytest

from actors.join.join_keys import REVOKED, JoinKeys
from actors.supervision.restart_policy import RestartPolicy
from actors.transport.join_tokens import PREFIX, parse_token
from actors.transport.keys import make_gateway_key, make_key, read_key
from actors.transport.link import CurveKeys
from cli.commands.worker import gateways_of, service_manager
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.config.sources import load
from protocol.bounds import MAX_GATEWAYS
from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving, url_of
from tests.cli.joining import joining_commands
from tests.ports import port_for_later
from workers.process.gateways.address import GatewayAddress
from workers.process.remote_agent import RemoteAgent, WorkerGaveUp, run_agent


def test_it_needs_an_address_and_both_keys(tmp_path: Path) -> None:
    own, server = make_key(tmp_path / "own"), make_key(tmp_path / "server")
    given = Settings(join=("tcp://10.0.0.1:7000",), server_key=(server.public_text,), key_file=str(tmp_path / "own"))
    (gateway,) = gateways_of(given)
    keys = gateway.keys.current
    assert gateway.address == "tcp://10.0.0.1:7000"
    assert (keys.public, keys.secret, keys.server) == (own.public, own.secret, server.public)
    for name in ("join", "server_key", "key_file"):
        with pytest.raises(CommandFailed, match=f"--{name.replace('_', '-')} is needed"):
            gateways_of(given.model_copy(update={name: ""}))
    with pytest.raises(CommandFailed, match="--join: write tcp://HOST:PORT, not"):
        gateways_of(given.model_copy(update={"join": ("tcp://10.0.0.1:7000", "gpu1:7000")}))
    with pytest.raises(CommandFailed, match="--server-key: a key has 64"):
        gateways_of(given.model_copy(update={"server_key": ("x",)}))
    (tmp_path / "own").chmod(0o640)
    with pytest.raises(CommandFailed, match="can be opened by others"):
        gateways_of(given)


def test_it_joins_several_gateways_with_one_key_for_all_or_one_for_each(tmp_path: Path) -> None:
    make_key(tmp_path / "own")
    first, second = (make_key(tmp_path / name) for name in ("first", "second"))
    file = tmp_path / "baton.toml"
    lines = ['join = ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]', f'key_file = "{tmp_path / "own"}"']
    file.write_text("\n".join([*lines, f'server_key = "{first.public_text}"']))
    given = load({}, file)
    assert [(each.address, each.keys.current.server) for each in gateways_of(given)] == [
        ("tcp://10.0.0.1:7000", first.public),
        ("tcp://10.0.0.2:7000", first.public),
    ]
    both = given.model_copy(update={"server_key": (first.public_text, second.public_text)})
    assert [each.keys.current.server for each in gateways_of(both)] == [first.public, second.public]
    three = given.model_copy(update={"server_key": (first.public_text,) * 3})
    with pytest.raises(
        CommandFailed, match="--server-key: give one key for all gateways, or one for each --join, not 3"
    ):
        gateways_of(three)
    most = tuple(f"tcp://10.0.0.1:{7000 + number}" for number in range(MAX_GATEWAYS))
    assert len(gateways_of(given.model_copy(update={"join": most}))) == MAX_GATEWAYS


def test_a_worker_that_is_given_up_ends_the_command(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    keys = CurveKeys(own.public, own.secret, server=own.public)
    command = lambda endpoint, incarnation: ["false"]  # noqa: E731
    once = RestartPolicy(max_failures=1)
    with pytest.raises(WorkerGaveUp, match="exited with status 1"):
        anyio.run(
            run_agent, RemoteAgent("w", command, [GatewayAddress("tcp://127.0.0.1:9", JoinKeys(keys))], policy=once)
        )


def test_a_server_without_workers_serves_with_one_that_joins(tmp_path: Path) -> None:
    health = tmp_path / "health"
    words = ("--name", "tiny", "--log-level", "warning", "--health-file", str(health))
    serve, work = joining_commands(tmp_path, *words)
    with serving(serve) as gateway:
        with serving(work) as worker:
            lines = read_until(gateway, "ready")
            assert json.loads(lines[-1])["slots"] == 8
            url = url_of(lines)
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S)
            assert len(answer.json()["choices"][0]["text"]) == 8
            (shown,) = httpx.get(f"{url}/admin/workers", timeout=DEADLINE_S).json()["workers"]
            assert (shown["name"], shown["model"]) == ("far", "tiny")
            assert health.stat().st_size == 0
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=DEADLINE_S)
            assert worker.returncode == 0, errors
            assert not health.exists()
        gateway.send_signal(signal.SIGTERM)
        _, errors = gateway.communicate(timeout=DEADLINE_S)
    assert gateway.returncode == 0, errors


def test_a_worker_joins_with_a_token_and_ends_when_it_is_removed(tmp_path: Path) -> None:
    """With an empty allow-list, over the routes that an orchestrator uses."""
    server = make_gateway_key(tmp_path / "keys").public_text
    address = f"tcp://127.0.0.1:{port_for_later()}"
    keys = ["--keys-dir", str(tmp_path / "keys"), "--admin-key", "admin"]
    headers = {"authorization": "Bearer admin"}
    with serving([*SERVE, "--workers", "0", "--listen-workers", address, *keys]) as gateway:
        url = f"http://127.0.0.1:{json.loads(read_until(gateway, 'listening')[-1])['port']}"
        made = httpx.post(f"{url}/admin/workers/far/token", json={}, headers=headers, timeout=DEADLINE_S).json()
        assert made["server_key"] == server
        work = ["-m", "cli", "worker", "--backend", "scripted", "--join", address, "--server-key", server]
        with serving(work, {"BATON_JOIN_TOKEN": made["token"]}) as worker:
            read_until(worker, "joined")
            read_until(gateway, "worker_joined")
            removed = httpx.post(f"{url}/admin/workers/far/remove", json={}, headers=headers, timeout=DEADLINE_S)
            assert removed.status_code == 202
            _, errors = worker.communicate(timeout=DEADLINE_S)
    assert worker.returncode == 1
    assert json.loads(errors.splitlines()[-1])["problem"] == REVOKED


def test_a_token_needs_no_key_file_and_makes_one_that_is_given(tmp_path: Path) -> None:
    server = make_key(tmp_path / "server")
    token = PREFIX + "1" * 64
    given = Settings(join=("tcp://10.0.0.1:7000",), server_key=(server.public_text,), join_token=token)
    keys = gateways_of(given)[0].keys
    assert keys.current.public == parse_token(token).public
    assert keys.ended(refused=False) == ""
    assert keys.current.public != parse_token(token).public
    file = given.model_copy(update={"key_file": str(tmp_path / "own")})
    made = gateways_of(file)[0].keys
    assert (made.registers, made.own_text) == (read_key(tmp_path / "own").public_text,) * 2
    assert gateways_of(file)[0].keys.own_text == made.own_text
    with pytest.raises(CommandFailed, match="--join-token: a join token is") as caught:
        gateways_of(given.model_copy(update={"join_token": "baton-join-secret"}))
    assert "secret" not in str(caught.value)
    with pytest.raises(CommandFailed, match="--join-token: a token is valid for one gateway, and --join names 2"):
        gateways_of(given.model_copy(update={"join": ("tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000")}))


def test_a_health_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "health").mkdir()
    with pytest.raises(CommandFailed, match=r"^--health-file: .* cannot be removed: "):
        service_manager(Settings(health_file=str(tmp_path / "health")))
    with pytest.raises(CommandFailed, match=rf"^--health-file: the folder {tmp_path}/absent does not exist: make it"):
        service_manager(Settings(health_file=str(tmp_path / "absent" / "health")))
