"""The routes that load adapters, beside each other: a load that takes long, and one that ends before its worker."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from actors.supervision.worker import WorkerState, WorkerUnavailable
from gateway.admin.adapters.adapter_routes import AdapterRoutes
from gateway.admin.adapters.adapter_sources import FetchAdapter
from gateway.errors import STATUS, RequestError
from gateway.routing.model_catalog import CatalogEntry
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_ADAPTERS
from protocol.commands import LoadAdapter
from protocol.events import AdapterChanged
from tests.gateway.admin.adapters.test_adapter_files import make_adapter
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio


async def refused(_: Any, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return PlainTextResponse(f"{error.code} {error.field} {error}", STATUS[error.code])


class Server:
    """The routes over a worker whose answers the test gives."""

    def __init__(self, folder: Path, fetch: FetchAdapter | None = None, **chosen: Any) -> None:
        self.world = World()
        self.worker = self.world["a"]
        ready = self.worker.status.ready
        assert ready is not None
        self.worker.change(ready=replace(ready, adapter_places=2))
        settings = GatewaySettings(lora_dirs=(str(folder),), **chosen)
        self.routes = AdapterRoutes(self.world.router, settings, fetch)
        app = Starlette(routes=self.routes.routes(), exception_handlers={RequestError: refused})
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    async def load(self, name: str, path: str = "one", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path} | fields)

    @property
    def asked(self) -> list[LoadAdapter]:
        return [each for sent in self.worker.sent for each in sent if isinstance(each, LoadAdapter)]

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:
            self.worker.arrived.clear()
            await self.worker.arrived.wait()

    def answer(self, at: int, text: str = "") -> None:
        self.worker.say(AdapterChanged(self.asked[at].query, text))

    async def deleted(self) -> None:
        """Until threads have deleted the copies of what is gone."""
        while self.routes._deletions:
            await asyncio.wait(self.routes._deletions)
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(folder: Path, fetch: FetchAdapter | None = None, **chosen: Any) -> AsyncIterator[Server]:
    server = Server(folder, fetch, **chosen)
    async with server.client:
        yield server
    if server.routes._state is not None:
        server.routes._state.close()


async def test_a_load_that_takes_long_holds_no_others_up(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    make_adapter(tmp_path / "two", b"2")
    answers: dict[str, httpx.Response] = {}
    ended = anyio.Event()
    async with serving(tmp_path) as server, anyio.create_task_group() as tasks:

        async def load(name: str, path: str) -> None:
            answers[name] = await server.load(name, path)
            ended.set()

        tasks.start_soon(load, "slow", "one")
        await server.until_asked(1)
        again = await server.load("slow")
        assert (again.status_code, "'slow' is being loaded" in again.text) == (503, True)
        tasks.start_soon(load, "quick", "two")
        await server.until_asked(2)
        third = await server.load("third", "two")
        assert "2 adapters are loaded" in third.text, "those that are being loaded have places"
        server.answer(1)
        await ended.wait()
        assert "slow" not in answers
        server.answer(0, "it is broken")
    assert [answers[name].status_code for name in ("quick", "slow")] == [200, 400]
    assert answers["slow"].text.endswith("it is broken")
    await server.deleted()
    root = server.routes._files._root
    assert root is not None
    assert [each.name for each in root.iterdir()] == [server.asked[1].digest], "copies of what is loaded"


async def test_names_of_models_that_no_worker_has_are_taken(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    async with serving(tmp_path) as server:
        server.world.router.pool.catalog.add(CatalogEntry("away", ("alias",), ("fixed",), on_demand=True))
        for name in ("away", "alias", "fixed", "tiny"):
            assert "is the name of a model or of its adapter" in (await server.load(name)).text


async def test_a_model_that_joins_has_its_name_before_an_adapter(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    async with serving(tmp_path) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.load, "sql")
            await server.until_asked(1)
            server.answer(0)
        assert server.world.router.models.canonical("sql") == "tiny"
        FakeWorker("b", model="sql").join(server.world.router)
        assert server.world.router.models.canonical("sql") == "sql"


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"lora_path": "none"}, (404, "not_found lora_path lora_path: there is no directory 'none'")),
        ({"lora_path": "/etc"}, (400, "invalid_request lora_path lora_path: it is not below a folder")),
        ({"lora_path": "n" * 300}, (400, "invalid_request lora_path lora_path: 'nnn")),
        ({"lora_path": "empty"}, (404, "not_found lora_path lora_path: there is no adapter_config.json in 'empty'")),
        ({"lora_path": "bare"}, (404, "not_found lora_path lora_path: there is neither adapter_model.safetensors nor")),
        ({"lora_name": ""}, (400, "invalid_request lora_name give a name of up to 95")),
        ({"lora_name": "n" * 96}, (400, "invalid_request lora_name give a name of up to 95")),
        ({"model": "none"}, (404, "model_not_found model there is no model 'none'")),
        ({}, (503, "unavailable None no worker of 'tiny' is ready")),
    ],
    ids=["none", "outside", "long", "empty", "bare", "name", "name-long", "model", "right"],
)
async def test_fields_are_checked_before_it_matters_whether_a_worker_is_ready(
    tmp_path: Path, fields: dict[str, str], answer: tuple[int, str]
) -> None:
    make_adapter(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    (make_adapter(tmp_path / "bare") / "adapter_model.safetensors").unlink()
    async with serving(tmp_path) as server:
        server.worker.change(state=WorkerState.BACKOFF)
        given = {"lora_name": "sql", "lora_path": "one"} | fields
        refused = await server.client.post("/v1/load_lora_adapter", json=given)
        assert (refused.status_code, refused.text[: len(answer[1])]) == answer
        assert server.routes._files._root is None, "nothing was copied"


async def test_more_loads_at_once_than_the_bound_are_refused(tmp_path: Path) -> None:
    make_adapter(tmp_path / "one")
    async with serving(tmp_path) as server:
        server.routes._loading.update(map(str, range(MAX_ADAPTERS)))
        refused = await server.load("sql")
        assert (refused.status_code, f"{MAX_ADAPTERS} adapters are being loaded" in refused.text) == (503, True)
        server.routes._loading.discard("0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.load, "sql")
            await server.until_asked(1)
            server.answer(0)
        assert server.world.router.models.canonical("sql") == "tiny"


async def test_hundreds_of_loads_and_unloads_leave_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        router, before = server.world.router, (await scraped(server)).count("\n")
        for at in range(100):
            make_adapter(tmp_path / str(at), str(at).encode())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.load, f"name{at}", str(at))
                await server.until_asked(1)
                server.answer(0)
            router.metrics.adapted("tiny", f"name{at}").inc()
            if not at:
                assert 'baton_adapter_requests_total{adapter="name0",model="tiny"} 1.0' in await scraped(server)
            body = {"lora_name": f"name{at}"}
            assert (await server.client.post("/v1/unload_lora_adapter", json=body)).status_code == 200
            router.adapters._check_retired()
            server.worker.sent.clear()
        assert (await scraped(server)).count("\n") == before, "no series of a name that is gone"
        assert (list(router.pool.runtime.wires()), server.routes._loading) == ([], set())
        state = router.adapters._workers["a"]
        assert (state.loaded, state.asked, state.refused) == ({}, {}, {})
        await server.deleted()
        assert not list(server.routes._files._opened_root().iterdir())


async def test_copies_are_deleted_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(tmp_path / "one")
    deleting, go_on, delete = asyncio.Event(), threading.Event(), shutil.rmtree
    loop = asyncio.get_running_loop()

    def slow(path: Any, ignore_errors: bool = False) -> None:
        if (Path(path) / "adapter_config.json").exists():
            loop.call_soon_threadsafe(deleting.set)
            go_on.wait(10)
        delete(path, ignore_errors)

    async with serving(tmp_path) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.load, "sql")
            await server.until_asked(1)
            server.answer(0)
        monkeypatch.setattr(shutil, "rmtree", slow)
        await server.client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
        server.world.router.adapters._check_retired()
        await deleting.wait()
        async with anyio.create_task_group() as tasks:  # the same adapter, while its copy is being deleted
            tasks.start_soon(server.load, "sql")
            await server.until_asked(2)
            server.answer(1)
        go_on.set()
        await server.deleted()
        assert (Path(server.asked[1].paths[0]) / "adapter_config.json").exists()


async def test_a_load_ends_with_a_worker_whose_link_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(tmp_path / "one")
    answers, tried = [], asyncio.Event()

    def full(commands: Any) -> None:
        tried.set()
        raise WorkerUnavailable("full")

    async with serving(tmp_path) as server:
        monkeypatch.setattr(server.worker, "send_nowait", full)

        async def load() -> None:
            answers.append(await server.load("sql"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            await tried.wait()
            server.worker.die()
    assert (answers[0].status_code, "no worker of 'tiny' is left" in answers[0].text) == (503, True)


async def scraped(server: Server) -> str:
    return "".join(
        line + "\n"
        for line in server.world.router.metrics.render().decode().splitlines()
        if line.startswith("baton_adapter")
    )
