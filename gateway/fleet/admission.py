"""Admission of remote workers: checks the name and the model of a join request. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from actors.supervision.hello_check import implausible
from actors.transport.rejections import Rejection
from gateway.fleet.member import Member
from gateway.routing.model_catalog import ModelCatalog
from protocol.events import Hello


@dataclass(frozen=True, slots=True)
class Objection:
    """The reason to decline a join request."""

    kind: Rejection
    why: str


def objection(members: Mapping[str, Member], name: str, hello: Hello, catalog: ModelCatalog) -> Objection | None:
    """Return why a worker must not join under that name with that model; None if it may. `catalog` has the names of the
    models of this server."""
    if (problem := implausible(hello)) is not None:
        return Objection(Rejection.FRAME, problem)
    if (own := catalog.canonical(hello.model)) != hello.model:
        return _wrong(f"{hello.model!r} is an alias of the model {own!r} here: give the worker's model another --name")
    known = members.get(name)
    if known is not None and not known.remote:
        return _wrong(f"{name} is a worker of the gateway's own machine: give the key another name")
    if known is not None and known.model != hello.model:
        return _wrong(
            f"{name} served {known.model!r} before, not {hello.model!r}: give each model's worker a key of its own"
        )
    if all(other.model_digest != hello.model_digest for _, other in _others(members, name, hello.model)):
        others = {other.model_digest for _, other in _others(members, name, hello.model)}
        if not others:
            return None
        return _wrong(
            f"its checkpoint of {hello.model!r} (digest {hello.model_digest or 'none'}) is not the one that is "
            f"served here (digest {', '.join(sorted(others)) or 'none'})"
        )
    return None


def differs(members: Mapping[str, Member], name: str, hello: Hello) -> str | None:
    """A worker of the same model with another backend, device, number type, kind of CPU or version. The new one may
    join all the same, but their tokens may differ."""
    for other_name, other in _others(members, name, hello.model):
        if (other.backend, other.config_digest) != (hello.backend, hello.config_digest):
            return other_name
    return None


def _others(members: Mapping[str, Member], name: str, model: str) -> Iterator[tuple[str, Hello]]:
    for each in members.values():
        if each.name != name and each.model == model and (hello := each.status.hello) is not None:
            yield each.name, hello


def _wrong(why: str) -> Objection:
    return Objection(Rejection.MODEL, why)
