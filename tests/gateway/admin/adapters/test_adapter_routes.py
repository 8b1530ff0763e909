"""The routes that load adapters, beside each other: a load that takes long, and one that ends before its worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from gateway.admin.adapter_routes import AdapterRoutes
from gateway.errors import RequestError
from gateway.routing.model_catalog import CatalogEntry
from gateway.settings import GatewaySettings
from protocol.commands import LoadAdapter
from protocol.events import AdapterChanged
from tests.gateway.admin.adapters.test_adapter_files import make_adapter
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio


async def refused(_: Any, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return PlainTextResponse(f"{error.code} {error}", 400)


class Server:
    """The routes over a worker whose answers the test gives."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.worker = self.world["a"]
        ready = self.worker.status.ready
        assert ready is not None
        self.worker.change(ready=replace(ready, adapter_places=2))
        settings = GatewaySettings(lora_dirs=(str(folder),))
        self.routes = AdapterRoutes(self.world.router, settings)
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


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    server = Server(folder)
    async with server.client:
        yield server


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
        assert (again.status_code, "'slow' is being loaded" in again.text) == (400, True)
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
        assert server.world.router.canonical("sql") == "tiny"
        FakeWorker("b", model="sql").join(server.world.router)
        assert server.world.router.canonical("sql") == "sql"
