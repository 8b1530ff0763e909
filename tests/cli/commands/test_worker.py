"""`baton worker`: the settings that it needs, its keys, and a process that joins and serves."""

import json
import signal
from pathlib import Path

import anyio
import httpx
import pytest

from actors.supervision.restart_policy import RestartPolicy
from actors.transport.keys import make_key
from actors.transport.link import CurveKeys
from cli.commands.worker import gateways_of, service_manager
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.config.sources import load
from protocol.bounds import MAX_GATEWAYS
from tests.cli.commands.test_serve import DEADLINE_S, read_until, serving, url_of
from tests.cli.joining import joining_commands
from workers.process.gateways.address import GatewayAddress
from workers.process.remote_agent import RemoteAgent, WorkerGaveUp, run_agent


def test_it_needs_an_address_and_both_keys(tmp_path: Path) -> None:
    own, server = make_key(tmp_path / "own"), make_key(tmp_path / "server")
    given = Settings(join=("tcp://10.0.0.1:7000",), server_key=(server.public_text,), key_file=str(tmp_path / "own"))
    (gateway,) = gateways_of(given)
    keys = gateway.keys
    assert gateway.address == "tcp://10.0.0.1:7000"
    assert (keys.public, keys.secret, keys.server) == (own.public, own.secret, server.public)
    for name in ("join", "server_key", "key_file"):
        with pytest.raises(CommandFailed, match=f"--{name.replace('_', '-')} is needed"):
            gateways_of(given.model_copy(update={name: ""}))
    for address in ("gpu1:7000", "ipc:///tmp/x", "tcp://10.0.0.1"):
        with pytest.raises(CommandFailed, match="--join: write tcp://HOST:PORT, not"):
            gateways_of(given.model_copy(update={"join": ("tcp://10.0.0.1:7000", address)}))
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
    assert [(each.address, each.keys.server) for each in gateways_of(given)] == [
        ("tcp://10.0.0.1:7000", first.public),
        ("tcp://10.0.0.2:7000", first.public),
    ]
    both = given.model_copy(update={"server_key": (first.public_text, second.public_text)})
    assert [each.keys.server for each in gateways_of(both)] == [first.public, second.public]
    three = given.model_copy(update={"server_key": (first.public_text,) * 3})
    with pytest.raises(
        CommandFailed, match="--server-key: give one key for all gateways, or one for each --join, not 3"
    ):
        gateways_of(three)
    with pytest.raises(CommandFailed, match="--join: a gateway is given twice"):
        gateways_of(given.model_copy(update={"join": ("tcp://10.0.0.1:7000",) * 2}))
    most = [f"tcp://10.0.0.1:{7000 + number}" for number in range(MAX_GATEWAYS)]
    assert len(gateways_of(given.model_copy(update={"join": tuple(most)}))) == MAX_GATEWAYS
    with pytest.raises(CommandFailed, match=f"{MAX_GATEWAYS + 1} gateways are given; {MAX_GATEWAYS} is the most"):
        gateways_of(given.model_copy(update={"join": (*most, "tcp://10.0.0.2:1")}))


def test_a_worker_that_is_given_up_ends_the_command(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    keys = CurveKeys(own.public, own.secret, server=own.public)
    command = lambda endpoint, incarnation: ["false"]  # noqa: E731
    once = RestartPolicy(max_failures=1)
    with pytest.raises(WorkerGaveUp, match="exited with status 1"):
        anyio.run(run_agent, RemoteAgent("w", command, [GatewayAddress("tcp://127.0.0.1:9", keys)], policy=once))


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


def test_a_health_file_that_cannot_be_replaced_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "health").mkdir()
    with pytest.raises(CommandFailed, match=r"^--health-file: .* cannot be removed: "):
        service_manager(Settings(health_file=str(tmp_path / "health")))
