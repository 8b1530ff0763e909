"""Admission of remote workers by name, model and checkpoint."""

import pytest
from msgspec.structs import replace

from actors.supervision.hello_check import implausible
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.supervision.worker_actor import WorkerRef
from actors.transport.rejections import Rejection
from gateway.fleet.admission import differs, objection
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.member import Member
from gateway.routing.model_catalog import CatalogEntry, ModelCatalog
from protocol.events import Hello

NONE = ModelCatalog()


class Known(WorkerRef):
    """A worker with a name and a status, and nothing behind them."""

    name = ""
    status: WorkerStatus = None  # type: ignore[assignment]  # an attribute here

    def __init__(self, name: str, hello: Hello | None) -> None:
        self.name = name
        self.status = WorkerStatus(name, WorkerState.READY, 1, 0, hello=hello)


def hello(model: str = "m", digest: str = "one", *, backend: str = "iree", config: str = "c") -> Hello:
    return Hello(1, "w", 1, 7, model, backend, "none", 4, 64, config, digest)


def local(name: str, said: Hello | None, model: str = "m") -> Member:
    launch = WorkerLaunch(name, model, lambda endpoint, incarnation: ["worker"])
    return Member(Known(name, said), model, launch)


def remote(name: str, said: Hello | None, model: str = "m") -> Member:
    return Member(Known(name, said), model)


def members(*given: Member) -> dict[str, Member]:
    return {member.name: member for member in given}


def test_the_first_worker_of_a_model_may_join() -> None:
    assert objection({}, "gpu1", hello(), NONE) is None
    assert objection(members(local("w0", hello("other", "two"), "other")), "gpu1", hello(), NONE) is None
    assert objection(members(local("w0", None)), "gpu1", hello(), NONE) is None, "which has reported no checkpoint yet"


def test_a_worker_that_says_what_cannot_be_is_refused() -> None:
    found = objection({}, "gpu1", replace(hello(), slots=0), NONE)
    assert found is not None
    assert (found.kind, found.why) == (Rejection.FRAME, implausible(replace(hello(), slots=0)))


@pytest.mark.parametrize("digest", ["one", ""])
def test_a_worker_of_the_same_checkpoint_may_join(digest: str) -> None:
    assert objection(members(local("w0", hello(digest=digest))), "gpu1", hello(digest=digest), NONE) is None


def test_a_worker_of_another_checkpoint_may_not() -> None:
    against = objection(members(local("w0", hello()), remote("gpu2", hello())), "gpu1", hello(digest="two"), NONE)
    assert against is not None
    assert against.kind is Rejection.MODEL
    assert against.why == "its checkpoint of 'm' (digest two) is not the one that is served here (digest one)"


def test_the_name_of_a_local_worker_is_taken() -> None:
    against = objection(members(local("w0", hello())), "w0", hello(), NONE)
    assert against is not None
    assert "w0 is a worker of the gateway's own machine" in against.why


def test_a_model_with_the_name_of_an_alias_is_refused() -> None:
    """Clients that use the alias would get another model."""
    catalog = ModelCatalog()
    catalog.add(CatalogEntry("big", ("m",)))
    against = objection(members(local("w0", hello("big"), "big")), "gpu1", hello("m"), catalog)
    assert against is not None
    assert against.kind is Rejection.MODEL
    assert against.why == "'m' is an alias of the model 'big' here: give the worker's model another --name"
    assert objection({}, "gpu1", hello("big"), catalog) is None


def test_a_remote_worker_that_returns_keeps_its_model() -> None:
    there = members(remote("gpu1", hello(digest="one")))
    assert objection(there, "gpu1", hello(digest="two"), NONE) is None, "no other worker has the old checkpoint"
    against = objection(there, "gpu1", hello("other"), NONE)
    assert against is not None
    assert "gpu1 served 'm' before, not 'other'" in against.why


@pytest.mark.parametrize(
    ("joining", "other"),
    [
        (hello(), None),
        (hello(backend="mlx"), "w0"),
        (hello(config="d"), "w0"),
        (hello("other", config="d"), None),
    ],
    ids=["equal", "backend", "config", "another model"],
)
def test_a_worker_that_may_compute_other_tokens_is_named(joining: Hello, other: str | None) -> None:
    there = members(local("w0", hello()), remote("gpu1", hello(config="mine before")), local("w1", None))
    assert differs(there, "gpu1", joining) == other
