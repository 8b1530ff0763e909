"""Names and aliases of models, and what the gateway says of them."""

import anyio
import pytest

from gateway.errors import RequestError
from gateway.routing.model_catalog import CatalogEntry, ModelCatalog, ModelState
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.events import Capabilities, Ready
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.routing.test_worker_pool import plan

pytestmark = pytest.mark.anyio


def test_an_alias_stands_for_the_own_name() -> None:
    catalog = ModelCatalog()
    catalog.add(CatalogEntry("a", ("x", "y")))
    catalog.add(CatalogEntry("b"))
    assert [catalog.canonical(name) for name in ("a", "x", "y", "b", "c")] == ["a", "a", "a", "b", "c"]
    assert (catalog.aliases("a"), catalog.aliases("c")) == (("x", "y"), ())


@pytest.mark.parametrize(
    "entry", [CatalogEntry("a"), CatalogEntry("x"), CatalogEntry("c", ("a",)), CatalogEntry("c", ("x",))]
)
def test_a_name_is_taken_once(entry: CatalogEntry) -> None:
    catalog = ModelCatalog()
    catalog.add(CatalogEntry("a", ("x",)))
    with pytest.raises(ValueError, match="two models have the name"):
        catalog.add(entry)


async def test_requests_may_use_an_alias() -> None:
    router = Router(GatewaySettings())
    FakeWorker("w0", model="a").join(router)
    router.pool.catalog.add(CatalogEntry("a", ("tiny",)))
    assert router.admission.open(plan(), "r").model == "a"


async def test_requests_on_other_workers_are_no_activity_of_those_that_are_asked_about() -> None:
    """The one who unloads models is notified when a worker has nothing any more, whatever the others have."""
    router = Router(GatewaySettings())
    near, far = FakeWorker("near").join(router), FakeWorker("far").join(router)
    router.pool.catalog.add(CatalogEntry("tiny", loads=True))
    groups = {group.worker: group for group in (router.admission.open(plan(), "r"), router.admission.open(plan(), "r"))}
    stirred: list[bool] = []
    router.watch_activity(lambda: stirred.append(True))
    await anyio.sleep(0.001)
    near.finish(groups["near"].sequences[0].submit.stream)
    assert stirred
    (here, there) = (router.activity("tiny", {name}) for name in ("near", "far"))
    assert (here.live, there.live) == (0, 1)
    assert here.last_used > 0.0 == there.last_used
    stirred.clear()
    near.change(incarnation=2)
    groups["moved"] = router.admission.open(plan(), "r")
    assert groups["moved"].worker == "near"
    near.fail(groups["moved"].sequences[0].submit.stream, ErrorCode.STEP)
    assert groups["moved"].worker == "far"
    assert stirred
    assert router.activity("tiny", {"near"}).live == 0
    assert far.submits[-1].stream in far.router.pool["far"].live


async def test_new_requests_of_a_held_model_wait_and_those_that_have_begun_go_on() -> None:
    router = Router(GatewaySettings())
    worker, other = FakeWorker("w0").join(router), FakeWorker("w1").join(router)
    entry = CatalogEntry("tiny", loads=True)
    router.pool.catalog.add(entry)
    begun = router.admission.open(plan(), "r")
    stirred: list[bool] = []
    router.watch_activity(lambda: stirred.append(True))
    entry.held = True
    router.admission.open(plan(), "r")
    assert (router.activity("tiny", {"w0", "w1"}).live, router.activity("tiny", {"w0", "w1"}).waiting) == (1, 1)
    assert stirred
    (worker if begun.worker == "w0" else other).die()
    assert begun.sequences[0].worker == ("w1" if worker.status.pid is None else "w0"), "it is replayed"
    assert router.activity("tiny", {"w0", "w1"}).waiting == 1
    entry.held = False
    router.model_changed("tiny")
    assert (router.activity("tiny", {"w0", "w1"}).live, router.activity("tiny", {"w0", "w1"}).waiting) == (2, 0)


async def test_a_model_that_could_not_be_loaded_refuses_with_the_reason() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker("w0").join(router)
    router.pool.catalog.add(entry := CatalogEntry("tiny", loads=True))
    worker.change(pid=None, ready=None, state=worker.status.state.STOPPED)
    waiting = router.admission.open(plan(), "r")
    entry.loads, entry.problem = False, "it is damaged"
    router.model_changed("tiny")
    assert waiting.failure is not None
    assert waiting.failure.text == "model 'tiny' could not be loaded: it is damaged"
    with pytest.raises(RequestError, match="it is damaged"):
        router.admission.open(plan(), "r")


async def test_a_model_keeps_its_capabilities_while_it_is_unloaded() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker("w0").join(router)
    router.pool.catalog.add(entry := CatalogEntry("tiny", context=77, model_context=99, context_bound="memory"))
    entry.backend = "iree"
    worker.change(ready=Ready(Capabilities(tools=True, reasoning=True)))
    FakeWorker("w1").join(router).change(ready=Ready(Capabilities(tools=True)))
    described, capabilities = router.models.describe("tiny"), router.models.capabilities("tiny")
    assert (described.state, described.workers, described.backend) == (ModelState.LOADED, 2, "scripted")
    assert capabilities == Capabilities(tools=True)
    for handle in router.pool:
        assert isinstance(handle.worker, FakeWorker)
        handle.worker.change(hello=None, ready=None, pid=None, state=worker.status.state.STOPPED)
    entry.state, entry.problem = ModelState.FAILED, "it is damaged"
    described = router.models.describe("tiny")
    assert (described.state, described.context, described.backend) == (ModelState.FAILED, 77, "iree")
    assert (described.model_context, described.context_bound, described.problem) == (99, "memory", "it is damaged")
    assert router.models.capabilities("tiny") == capabilities


async def test_a_model_of_remote_workers_alone_is_described_by_them() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker("far").join(router)
    described = router.models.describe("tiny")
    assert (described.state, described.aliases, described.bytes, described.keep_alive_s) == ("loaded", (), 0, None)
    worker.change(state=worker.status.state.LOADING)
    assert router.models.describe("tiny").state is ModelState.LOADING
    worker.change(state=worker.status.state.STOPPED, running=False)
    assert router.models.describe("tiny").state is ModelState.UNLOADED
