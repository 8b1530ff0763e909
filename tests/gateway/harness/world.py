"""A router over workers whose frames the test sends, with shorthands."""

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.openai.decoding import RequestDecoder
from gateway.routing.failure_attribution import CLEARED_AFTER
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.commands import Submit
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import FakeWorker


class World:
    """A router, its workers, and short ways to say things."""

    def __init__(self, *names: str, slots: int = 4, **settings: Any) -> None:
        chosen = GatewaySettings(**settings)
        self.router = Router(chosen)
        self.decoder = RequestDecoder(chosen)
        self.workers = {name: FakeWorker(name, slots=slots).join(self.router) for name in names or ("a",)}

    def __getitem__(self, name: str) -> FakeWorker:
        return self.workers[name]

    def open(self, request: str = "r", *, client: str = "", **fields: Any) -> RequestGroup:
        body = {"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 100} | fields
        return self.router.admission.open(
            self.decoder.completion(json.dumps(body).encode()).request, request, client=client
        )

    def replays(self) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (sample.labels["cause"], sample.labels["outcome"]): sample.value
            for sample in samples
            if sample.name == "baton_replays_total"
        }

    def gaps(self) -> float:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == "baton_replay_gap_seconds_count")


def last(worker: FakeWorker) -> Submit:
    return worker.submits[-1]


def number(group: RequestGroup, index: int = 0) -> int:
    return group.sequences[index].submit.stream


def failure(group: RequestGroup) -> ErrorCode | None:
    return group.failure.code if group.failure is not None else None


def clear(worker: FakeWorker, submit: Submit) -> None:
    """Let a suspect get past the point at which its worker died."""
    for token in range(CLEARED_AFTER):
        worker.token(submit.stream, "+", token)
