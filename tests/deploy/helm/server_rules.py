"""Rules of Kubernetes' API server that its schemas do not have, for the kinds and fields that the chart uses: those of
`pkg/apis/core/validation` and its neighbours."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035, which holds for Services; other objects may have more."""
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
ENTRY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|[MGTPE]|Ki|[MGTPE]i)?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "Ki": 2.0**10}
_UNITS |= {unit: 1e3 ** (power + 2) for power, unit in enumerate("MGTPE")}
_UNITS |= {f"{unit}i": 2.0 ** (10 * (power + 2)) for power, unit in enumerate("MGTPE")}


def problems(each: dict[str, Any]) -> Iterator[str]:
    """Yield what the API server would refuse in an object that its schema accepts."""
    kind, spec = each["kind"], each.get("spec", {})
    yield from _metadata(kind, each["metadata"])
    if kind in ("ConfigMap", "Secret"):
        for name in [*each.get("data", {}), *each.get("stringData", {})]:
            yield from _unlike(ENTRY, name, "an entry")
    elif kind in ("Deployment", "StatefulSet"):
        template = spec["template"]
        yield from _metadata(kind, template["metadata"] | {"name": "pod"})
        if not spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
            yield "the selector does not select the pods"
        if spec.get("strategy", {}).get("type") == "Recreate" and "rollingUpdate" in spec["strategy"]:
            yield "rollingUpdate is for the type RollingUpdate"
        for claim in spec.get("volumeClaimTemplates", ()):
            if not claim["spec"].get("accessModes") or "storage" not in claim["spec"]["resources"]["requests"]:
                yield f"{claim['metadata']['name']}: access modes and a size are needed"
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
        yield from _pod(template["spec"], claims)
    elif kind == "Pod":
        yield from _pod(spec, [])
    elif kind == "PodDisruptionBudget" and len({"minAvailable", "maxUnavailable"} & set(spec)) != 1:
        yield "one of minAvailable and maxUnavailable is needed"
    elif kind == "Service":
        yield from _ports(spec.get("ports", ()), "port")


def _metadata(kind: str, metadata: dict[str, Any]) -> Iterator[str]:
    yield from _unlike(NAME, metadata["name"], f"the name of a {kind}")
    for name, value in metadata.get("labels", {}).items():
        yield from _unlike(LABEL_NAME, name, "the name of a label")
        yield from _unlike(LABEL, value, f"the label {name}")


def _pod(spec: dict[str, Any], claims: Sequence[str]) -> Iterator[str]:
    volumes = [volume["name"] for volume in spec.get("volumes", ())]
    yield from _twice([*volumes], "volume")
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    yield from _twice([container["name"] for container in containers], "container")
    for container in containers:
        yield from _unlike(NAME, container["name"], "the name of a container")
        yield from _ports(container.get("ports", ()), "containerPort")
        yield from _mounts(container.get("volumeMounts", ()), {*volumes, *claims})
        for variable in container.get("env") or ():
            yield from _unlike(VARIABLE, variable["name"], "a variable")
            if ("value" in variable) == ("valueFrom" in variable):
                yield f"{variable['name']}: one of value and valueFrom is needed"
        yield from _resources(container.get("resources", {}))
        for name in ("livenessProbe", "startupProbe"):
            if container.get(name, {}).get("successThreshold", 1) != 1:
                yield f"{name}: successThreshold must be 1"
    for spread in spec.get("topologySpreadConstraints", ()):
        if spread["maxSkew"] < 1 or spread["whenUnsatisfiable"] not in ("DoNotSchedule", "ScheduleAnyway"):
            yield "an invalid topology spread constraint"


def _ports(ports: Sequence[dict[str, Any]], field: str) -> Iterator[str]:
    yield from _twice([port.get("name", "") for port in ports], "name of a port")
    for port in ports:
        if not 1 <= port[field] <= 65535:
            yield f"{port[field]} is not a port"
        if len(ports) > 1 or "name" in port:
            yield from _unlike(PORT_NAME, port.get("name", ""), "the name of a port")


def _mounts(mounts: Sequence[dict[str, Any]], volumes: set[str]) -> Iterator[str]:
    yield from _twice([mount["mountPath"] for mount in mounts], "mount path")
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"there is no volume {mount['name']}"
        if ":" in mount["mountPath"]:
            yield f"{mount['mountPath']} has a colon"
        inside = mount.get("subPath") or mount.get("subPathExpr") or "."
        if ("subPath" in mount and "subPathExpr" in mount) or inside.startswith("/") or ".." in inside.split("/"):
            yield f"{inside} is not a path below a volume"


def _resources(resources: dict[str, Any]) -> Iterator[str]:
    limits = resources.get("limits", {})
    for name, amount in [*resources.get("requests", {}).items(), *limits.items()]:
        yield from _unlike(QUANTITY, str(amount), name)
    for name, amount in resources.get("requests", {}).items():
        if name in limits and _number(amount) > _number(limits[name]):
            yield f"{name}: the request is above the limit"


def _number(amount: object) -> float:
    found = QUANTITY.fullmatch(str(amount))
    return 0.0 if found is None else float(found[1]) * _UNITS[found[2] or ""]


def _unlike(pattern: re.Pattern[str], text: str, what: str) -> Iterator[str]:
    if not pattern.fullmatch(text):
        yield f"{text!r} is not valid for {what}"


def _twice(names: Sequence[str], what: str) -> Iterator[str]:
    yield from (f"{what} {name!r} is there twice" for name in sorted(set(names)) if names.count(name) > 1)
