"""Adapters that the next gateway has again, and files of state that it cannot use."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.admin.adapters import adapter_routes
from gateway.admin.adapters.adapter_routes import AdapterRoutes
from gateway.admin.adapters.adapter_state import (
    LOCK_FILE,
    MAX_KEPT,
    MAX_STATE_BYTES,
    STATE_FILE,
    AdapterState,
    AdapterStateInvalid,
    KeptAdapter,
)
from gateway.routing.adapters.registry import MAX_ADAPTER_NAME
from gateway.routing.model_catalog import CatalogEntry
from gateway.settings import GatewaySettings, GatewaySettingsError
from protocol.bounds import MAX_NAME, MAX_PATH
from tests.gateway.admin.adapters.test_adapter_files import WEIGHTS, make_adapter
from tests.gateway.admin.adapters.test_adapter_routes import Server, serving
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio
ENTRY = {"name": "sql", "model": "tiny", "digest": "0" * 32, "path": "/lora/one"}


async def loaded(server: Server, name: str, path: str, **fields: Any) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.load(name, path, **fields))
        await server.until_asked(before := len(server.asked) + 1)
        server.answer(before - 1)


async def test_the_next_gateway_has_the_adapters_with_the_same_files(tmp_path: Path) -> None:
    folders = {name: make_adapter(tmp_path / "lora" / name, name.encode()) for name in ("one", "two", "three")}
    state, lora = tmp_path / "state", tmp_path / "lora"
    async with serving(lora, lora_state_dir=str(state)) as server:
        for name in ("one", "two"):
            await loaded(server, name, name)
        assert (await server.client.post("/v1/unload_lora_adapter", json={"lora_name": "one"})).status_code == 200
        await loaded(server, "two", "three", load_inplace=True)
        digest = server.asked[-1].digest
    (folders["three"] / WEIGHTS).write_bytes(b"changed")
    (state / "partial-killed").mkdir()
    (state / "foreign").mkdir()
    assert os.stat(state).st_mode & 0o777 == 0o700
    async with serving(lora, lora_state_dir=str(state)) as server:
        (asked,) = server.asked
        assert (asked.name, asked.number, asked.digest) == (f"two@{digest}", 1, digest)
        assert (Path(asked.paths[0]) / WEIGHTS).read_bytes() == b"three", "as it was when it was loaded"
        assert sorted(each.name for each in state.iterdir()) == sorted((STATE_FILE, LOCK_FILE, digest, "foreign"))
        server.answer(0)
        assert server.world.router.models.canonical("two") == "tiny"
        again = await server.load("two", "three")
        assert "set load_inplace" in again.text


async def test_an_adapter_that_no_worker_can_load_again_stays_until_it_is_unloaded(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    state = tmp_path / "state"
    async with serving(tmp_path, lora_state_dir=str(state)) as server:
        await loaded(server, "sql", "one")
    for _ in range(2):
        async with serving(tmp_path, lora_state_dir=str(state)) as server:
            server.answer(0, "of another model")
            assert server.world.router.models.canonical("sql") == "sql", "no request can name it"
            if not _:
                continue
            assert (await server.client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 200
            assert (await server.client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 404
    assert AdapterState(str(state)).adapters == []


async def test_a_worker_with_fewer_places_than_before_refuses_the_rest_and_requests_do_not_wait(tmp_path: Path) -> None:
    state = AdapterState(str(tmp_path / "state"))
    state.write(KeptAdapter(f"a{at}", "tiny", f"{at:032x}", "/lora") for at in range(3))
    state.close()
    async with serving(tmp_path, lora_state_dir=str(tmp_path / "state")) as server:
        assert [each.name.partition("@")[0] for each in server.asked] == ["a0", "a1"], "it has two places"
        assert [server.world.router.models.canonical(f"a{at}") for at in range(3)] == ["tiny", "tiny", "a2"]


async def test_a_failure_to_write_is_told_and_says_its_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(tmp_path / "one")
    answers = []

    def fails(self: AdapterState, adapters: Any) -> None:
        raise OSError(28, "No space left on device")

    async with serving(tmp_path, lora_state_dir=str(tmp_path / "state")) as server:
        monkeypatch.setattr(AdapterState, "write", fails)

        async def load() -> None:
            answers.append(await server.load("sql"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            await server.until_asked(1)
            server.answer(0)
        assert answers[0].status_code == 503
        assert "'sql' is loaded, and will not be after a restart: `lora_state_dir` cannot be written" in answers[0].text
        assert server.world.router.models.canonical("sql") == "tiny"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read"),
        (b"\xff", "cannot be read"),
        ({"version": 2, "adapters": []}, "version 2 is not 1"),
        ({"version": 1, "adapters": [], "more": 1}, "cannot be read: .*more"),
        ({"version": 1, "adapters": [ENTRY, ENTRY]}, r"adapters\[1\].name is invalid"),
        ({"version": 1, "adapters": [ENTRY | {"digest": "../../x"}]}, r"adapters\[0\].digest is invalid"),
        ({"version": 1, "adapters": [ENTRY | {"path": "x"}]}, r"adapters\[0\].path is invalid"),
        ({"version": 1, "adapters": [ENTRY | {"model": ""}]}, r"adapters\[0\].model is invalid"),
        ({"version": 1, "adapters": [ENTRY | {"name": "n" * 96}]}, r"adapters\[0\].name is invalid"),
        ({"version": 1, "adapters": [ENTRY | {"name": f"{at}"} for at in range(MAX_KEPT + 1)]}, "are more than 1024"),
    ],
    ids=["json", "utf-8", "version", "field", "twice", "digest", "path", "model", "name", "count"],
)
def test_a_state_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: Any, problem: str) -> None:
    given = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / STATE_FILE).write_bytes(given if isinstance(given, bytes) else given.encode())
    with pytest.raises(AdapterStateInvalid, match=f"lora_state_dir: .*{problem}"):
        AdapterState(str(tmp_path))


async def test_the_most_adapters_are_kept_and_one_more_is_refused(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    state = AdapterState(str(tmp_path))
    state.write(KeptAdapter(f"a{at}", "other", f"{at:032x}", "/lora") for at in range(MAX_KEPT))
    state.close()
    async with serving(tmp_path, lora_state_dir=str(tmp_path)) as server:
        refused = await server.load("one more")
        assert (refused.status_code, "`lora_state_dir` has 1024 adapters" in refused.text) == (400, True)
        assert (await server.client.post("/v1/unload_lora_adapter", json={"lora_name": "a0"})).status_code == 200
        await loaded(server, "one more", "one")
    assert AdapterState(str(tmp_path)).has("one more")


def test_a_folder_belongs_to_one_server_and_its_successor(tmp_path: Path) -> None:
    folder = str(tmp_path)
    first = AdapterState(folder)
    with pytest.raises(AdapterStateInvalid, match=f"lora_state_dir: another server uses {tmp_path}: each one needs"):
        AdapterState(folder)
    with pytest.raises(AdapterStateInvalid, match="another server than process 1, from which this one"):
        AdapterState(folder, predecessor=1)
    successor = AdapterState(folder, predecessor=os.getpid())
    assert not successor.hold()
    successor.write(())  # both use it
    first.close()
    assert successor.hold()
    for predecessor in (0, 1):
        with pytest.raises(AdapterStateInvalid, match="another server"):
            AdapterState(folder, predecessor=predecessor)
    successor.close()
    AdapterState(folder, predecessor=1).close()  # the port was free, or that one used another folder


def test_a_successor_may_be_succeeded_before_its_predecessor_has_ended(tmp_path: Path) -> None:
    """A predecessor keeps the lock until its last stream has ended, which may take an hour."""
    folder, lock = str(tmp_path), tmp_path / LOCK_FILE
    first = AdapterState(folder)
    lock.write_text("1\n2\n")  # as if process 2 had taken over from process 1, which has the lock
    third = AdapterState(folder, predecessor=2)
    assert lock.read_text() == f"1\n2\n{os.getpid()}\n"
    with pytest.raises(AdapterStateInvalid, match="another server"):
        AdapterState(folder, predecessor=3)
    lock.write_text("4\n")  # as if another server had been faster after the end of the first ones
    with pytest.raises(OSError, match="another server uses the folder now"):
        third.write(())
    lock.write_text("")  # a version that did not note its process
    AdapterState(folder, predecessor=3)
    first.close()


async def test_the_folder_is_locked_as_soon_as_the_predecessor_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_routes, "HOLD_S", 0.0)
    world, folder = World(), str(tmp_path / "state")
    first = AdapterState(folder)
    settings = GatewaySettings(lora_dirs=(str(tmp_path),), lora_state_dir=folder)
    routes = AdapterRoutes(world.router, settings, predecessor=os.getpid())
    await anyio.wait_all_tasks_blocked()
    first.close()
    held = anyio.Event()
    assert routes._state is not None
    hold = routes._state.hold

    def noted() -> bool:
        if hold():
            held.set()
        return held.is_set()

    monkeypatch.setattr(routes._state, "hold", noted)
    await held.wait()
    with pytest.raises(AdapterStateInvalid, match="another server"):
        AdapterState(folder)
    routes._state.close()


async def test_a_kept_adapter_does_not_take_the_name_of_a_model_or_of_its_adapter(tmp_path: Path) -> None:
    state = AdapterState(str(tmp_path / "state"))
    for name in ("tiny", "alias", "fixed", "sql"):
        state.add(KeptAdapter(name, "gone", "0" * 32, "/lora"))
    state.write(state.adapters)
    state.close()
    world = World()
    world.router.pool.catalog.add(CatalogEntry("away", ("alias",), ("fixed",)))
    settings = GatewaySettings(lora_dirs=(str(tmp_path),), lora_state_dir=str(tmp_path / "state"))
    routes = AdapterRoutes(world.router, settings)
    assert [world.router.models.canonical(each.name) for each in state.adapters] == ["tiny", "away", "away", "gone"]
    assert world.router.models.on_workers("fixed") == "fixed", "not the weights of the kept one"
    assert routes._state is not None
    assert len(routes._state.adapters) == 4, "they stay until they are unloaded"
    routes._state.close()


def test_the_largest_file_can_be_read(tmp_path: Path) -> None:
    state = AdapterState(str(tmp_path))
    state.write([KeptAdapter('"' * MAX_ADAPTER_NAME, "\1" * MAX_NAME, "0" * 32, "/" + "\1" * (MAX_PATH - 1))])
    size = (tmp_path / STATE_FILE).stat().st_size
    state.close()
    assert size * MAX_KEPT < MAX_STATE_BYTES
    assert AdapterState(str(tmp_path)).has('"' * MAX_ADAPTER_NAME)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdapterStateInvalid, match="cannot be used: File exists"):
        AdapterState(str(tmp_path / "file"))
    with pytest.raises(GatewaySettingsError, match="lora_state_dir needs lora_dirs or allow_lora_repos"):
        GatewaySettings(lora_state_dir=str(tmp_path))
