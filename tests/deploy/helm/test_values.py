"""Values of the chart: what is refused and with which sentence, and which changes restart which pods."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.helm.chart import CASES, Release
from tests.deploy.helm.library import Rendered, Values, installed, render

if not installed():
    pytest.skip("Helm's library is not installed: pip install '.[helm]'", allow_module_level=True)

KEY = "0" * 64


def changed(values: Values, changes: Mapping[str, Any]) -> Values:
    """These values with others at some paths, `a.b`."""
    made = copy.deepcopy(dict(values))
    for path, value in changes.items():
        *folders, name = path.split(".")
        place = made
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return made


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("single", {"auth": {}}, "auth: clients need a key"),
    ("single", {"auth": {"adminKey": "k"}}, "auth: clients need a key"),
    ("single", {"auth": {"existingSecret": "s", "entries": ["admin-key"]}}, "auth: clients need a key"),
    ("single", {"auth.open": True}, "auth.open says that clients need no key, but auth gives one"),
    ("single", {"auth.existingSecret": "s"}, "auth.existingSecret has the keys already"),
    ("single", {"gateway.workers": 0}, "workers.replicas and gateway.workers are both 0"),
    ("single", {"workers.replicas": 1}, "join.gatewaySecret is needed for workers.replicas"),
    ("fleet", {"join.serverKey": ""}, "join.serverKey is needed for workers.replicas"),
    ("fleet", {"join.workerSecret": ""}, "join.workerSecret is needed for workers.replicas"),
    ("fleet", {"workers.replicas": 5}, "join.publicKeys has no key of worker-4, and workers.replicas is 5"),
    ("single", {"settings.port": 80}, "settings.port: the chart sets it; use service.port"),
    ("single", {"gateway.settings.api_key": "k"}, "gateway.settings.api_key: the chart sets it; use auth"),
    ("fleet", {"workers.settings.join": "x"}, "workers.settings.join: the chart sets it; use join"),
    ("single", {"settings.allowed_hosts": ["a"]}, "settings.allowed_hosts: the chart sets it; use gateway.settings"),
    ("fleet", {"volumes.cache.existingClaim": "c"}, "volumes.cache has size and existingClaim"),
    ("single", {"volumes.models.size": "1Gi"}, "volumes.models.size is for the pods of workers.replicas"),
    (
        "single",
        {"auth": {"existingSecret": "s", "entries": ["api-keys"]}},
        "metrics.podMonitor.keySecret is needed: /metrics needs an API key",
    ),
    # By the schema, with the path of the value.
    ("single", {"gateway.worker": 1}, r"at '/gateway'.*'worker' not allowed"),
    ("single", {"gateway.workers": 65}, r"at '/gateway/workers'.*maximum"),
    ("single", {"gateway.workers": "two"}, r"at '/gateway/workers'.*got string, want integer"),
    ("single", {"gateway.preStopSeconds": 601}, r"at '/gateway/preStopSeconds'.*maximum"),
    ("single", {"settings.Threads": 2}, r"at '/settings'.*'Threads' not allowed"),
    ("single", {"settings.models": {"a": 1}}, r"at '/settings/models'.*got object"),
    ("single", {"image.digest": "latest"}, r"at '/image/digest'.*does not match pattern"),
    ("single", {"ipFamily": "ipv4"}, r"at '/ipFamily'.*must be one of 'IPv4', 'IPv6'"),
    ("single", {"auth": {"existingSecret": "s", "entries": ["key"]}}, r"at '/auth/entries/0'.*must be one of"),
    ("fleet", {"join.port": 80}, r"at '/join/port'.*minimum"),
    ("fleet", {"join.publicKeys.worker-0": "0" * 63}, r"at '/join/publicKeys/worker-0'.*does not match pattern"),
    ("fleet", {"join.publicKeys.w0": KEY}, r"at '/join/publicKeys'.*'w0' not allowed"),
    ("fleet", {"workers.maxUnavailable": 0}, r"at '/workers/maxUnavailable'.*minimum"),
    ("fleet", {"trustedGateways": ["example.org"]}, r"at '/trustedGateways/0'.*does not match pattern"),
    ("fleet", {"volumes.cache.size": "much"}, r"at '/volumes/cache/size'.*does not match pattern"),
    ("fleet", {"networkPolicy.clients": [{}]}, r"at '/networkPolicy/clients/0'.*minProperties"),
    ("fleet", {"metrics.names": "prometheus"}, r"at '/metrics/names'.*must be one of 'baton', 'vllm'"),
]
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("single", {}),
    ("single", {"gateway.workers": 64}),
    ("single", {"gateway.preStopSeconds": 600}),
    ("single", {"gateway.shutdownGraceSeconds": 0}),
    ("single", {"auth": {"existingSecret": "s", "entries": ["api-keys"]}, "metrics.podMonitor.keySecret": "m"}),
    ("single", {"networkPolicy.clients": []}),
    ("fleet", {"workers.replicas": 4}),
    ("fleet", {"workers.maxUnavailable": "25%"}),
    ("fleet", {"join.port": 1024}),
    ("fleet", {"join.publicKeys.worker-1023": KEY}),
    ("fleet", {"trustedGateways": ["fd00::/8", "10.0.0.1"]}),
]

RESTARTED: list[tuple[dict[str, Any], set[str]]] = [
    ({"join.publicKeys.worker-4": KEY}, set()),
    ({"workers.replicas": 4}, set()),
    ({"networkPolicy.hub": True}, set()),
    ({"service.port": 80}, set()),
    ({"gateway.settings.max_queue_s": 30}, {"gateway"}),
    ({"metrics.names": "baton"}, {"gateway"}),
    ({"workers.settings.threads": 4}, {"worker"}),
    ({"settings.max_batch_size": 8}, {"worker"}),
    ({"model": "/models/other"}, {"worker"}),
    ({"image.digest": f"sha256:{'1' * 64}"}, {"gateway", "worker"}),
    ({"join.port": 7001}, {"gateway", "worker"}),
]


def case_id(value: object) -> str:
    """The same in all processes, which order sets differently."""
    return re.sub(r"\W+", "-", str(sorted(value) if isinstance(value, set) else value))[:60]


@pytest.fixture(scope="module")
def answers() -> dict[str, Rendered]:
    """The chart with all of these changes, made by one process."""
    every = [("fleet", {}), *(each[:2] for each in REFUSED), *ACCEPTED, *(("fleet", each) for each, _ in RESTARTED)]
    asked = {str((name, changes)): changed(CASES[name], changes) for name, changes in every}
    return dict(zip(asked, render(list(asked.values())), strict=True))


@pytest.mark.parametrize(("name", "changes", "sentence"), REFUSED, ids=case_id)
def test_wrong_values_are_refused_by_name(
    answers: dict[str, Rendered], name: str, changes: dict[str, Any], sentence: str
) -> None:
    error = answers[str((name, changes))].error
    assert re.search(sentence, error, re.DOTALL), error


@pytest.mark.parametrize(("name", "changes"), ACCEPTED, ids=case_id)
def test_values_at_the_bounds_are_accepted(answers: dict[str, Rendered], name: str, changes: dict[str, Any]) -> None:
    assert answers[str((name, changes))].error == ""


def test_everyone_may_connect_if_no_clients_are_named(answers: dict[str, Rendered]) -> None:
    release = Release(answers[str(("single", {"networkPolicy.clients": []}))].templates)
    (policy,) = release.of("NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": 8000, "protocol": "TCP"}]}]


@pytest.mark.parametrize(("changes", "restarted"), RESTARTED, ids=case_id)
def test_a_change_restarts_the_pods_that_it_concerns(
    answers: dict[str, Rendered], changes: dict[str, Any], restarted: set[str]
) -> None:
    templates = [
        {
            name: each["spec"]["template"]
            for name, each in Release(answers[str(("fleet", asked))].templates).controllers.items()
        }
        for asked in ({}, changes)
    ]
    assert {name for name in templates[0] if templates[0][name] != templates[1][name]} == restarted


def test_a_key_of_the_values_restarts_the_gateway() -> None:
    """A container does not notice that a variable from a Secret has changed."""
    other = changed(CASES["single"], {"auth.apiKey": "another"})
    before, after = (Release(each.templates) for each in render([CASES["single"], other]))
    templates = [each.controllers["gateway"]["spec"]["template"] for each in (before, after)]
    assert templates[0] != templates[1]
    assert "another" not in str(templates)
    assert after.of("Secret")[0]["stringData"]["api-key"] == "another"
