"""Rules of Kubernetes' API server beyond its schemas: the chart keeps them, and damage is found."""

import copy
from typing import Any

import pytest

from tests.deploy.helm.chart import Release
from tests.deploy.helm.server_rules import problems


def test_the_api_server_refuses_nothing(release: Release) -> None:
    found = {each["metadata"]["name"]: list(problems(dict(each))) for each in release.objects}
    assert {name: texts for name, texts in found.items() if texts} == {}


Path = tuple[str | int, ...]
SPEC: Path = ("spec", "template", "spec")
CONTAINER: Path = (*SPEC, "containers", 0)
DAMAGED: list[tuple[str, Path, Any, str]] = [
    ("Deployment", ("metadata", "name"), "Baton", "'Baton' is not valid for the name of a Deployment"),
    ("Deployment", ("metadata", "labels", "a"), "x" * 64, f"'{'x' * 64}' is not valid for the label a"),
    ("Deployment", ("spec", "template", "metadata", "labels"), {}, "the selector does not select the pods"),
    ("Deployment", ("spec", "strategy"), {"type": "Recreate", "rollingUpdate": {}}, "rollingUpdate is for the type"),
    ("Deployment", (*CONTAINER, "ports", 0, "name"), "a" * 16, f"'{'a' * 16}' is not valid for the name of a port"),
    ("Deployment", (*CONTAINER, "ports", 0, "containerPort"), 65536, "65536 is not a port"),
    ("Deployment", (*CONTAINER, "volumeMounts", 0, "name"), "none", "there is no volume none"),
    ("Deployment", (*CONTAINER, "volumeMounts", 0, "subPath"), "../x", "../x is not a path below a volume"),
    ("Deployment", (*CONTAINER, "volumeMounts", 0, "mountPath"), "/a:b", "/a:b has a colon"),
    ("Deployment", (*CONTAINER, "env", 0), {"name": "1A", "value": ""}, "'1A' is not valid for a variable"),
    ("Deployment", (*CONTAINER, "env", 0), {"name": "A"}, "A: one of value and valueFrom is needed"),
    (
        "Deployment",
        (*CONTAINER, "resources"),
        {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}},
        "cpu: the request",
    ),
    ("Deployment", (*CONTAINER, "resources"), {"limits": {"memory": "4GB"}}, "'4GB' is not valid for memory"),
    ("Deployment", (*CONTAINER, "livenessProbe", "successThreshold"), 2, "livenessProbe: successThreshold must be 1"),
    ("StatefulSet", (*SPEC, "topologySpreadConstraints", 0, "maxSkew"), 0, "an invalid topology spread constraint"),
    ("StatefulSet", ("spec", "volumeClaimTemplates", 0, "spec", "accessModes"), [], ": access modes and a size"),
    ("PodDisruptionBudget", ("spec", "minAvailable"), 1, "one of minAvailable and maxUnavailable is needed"),
    ("Service", ("spec", "ports", 0, "name"), "http--a", "'http--a' is not valid for the name of a port"),
    ("ConfigMap", ("data", "a/b"), "", "'a/b' is not valid for an entry"),
]


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"), DAMAGED, ids=[f"{each[0]}-{n}" for n, each in enumerate(DAMAGED)]
)
def test_damage_is_found(releases: dict[str, Release], kind: str, path: Path, value: Any, problem: str) -> None:
    damaged = copy.deepcopy(dict(releases["fleet"].of(kind)[0]))
    *folders, last = path
    place: Any = damaged
    for each in folders:
        place = place[each]
    place[last] = value
    assert problem in "; ".join(problems(damaged))


def test_a_second_mount_at_a_path_is_found(releases: dict[str, Release]) -> None:
    damaged = copy.deepcopy(dict(releases["fleet"].of("Deployment")[0]))
    mounts = damaged["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    mounts.append(mounts[0])
    assert list(problems(damaged)) == [f"mount path {mounts[0]['mountPath']!r} is there twice"]
