"""The objects of the chart fit together, and fit what Baton does."""

import json
import os
import re
import shlex
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

import baton_serve
from actors.supervision.deadlines import Deadlines
from actors.transport.allow_list import AllowList
from cli.config.launch import gateway_settings
from cli.config.settings import Settings
from cli.config.sources import CONFIG_VARIABLE, load
from cli.main import app
from gateway.daemon import WORKERS_END_S
from gateway.fleet.join_address import join_address
from tests.deploy.helm.chart import CASES, Release
from tests.deploy.helm.library import CHART, NAMESPACE, lint
from tests.deploy.helm.reduce_schemas import FILE, VERSIONS
from tests.gateway.harness.serving import serving

SCHEMAS = json.loads(FILE.read_text())
POD_MONITOR = {"port", "path", "interval", "scheme", "tlsConfig", "authorization"}
"""Fields of an endpoint that Prometheus' operator knows."""
SECRETS = {"api_key", "admin_key"}


def test_helm_lint_has_no_complaint(releases: dict[str, Release], case: str) -> None:
    assert lint(CASES[case]) == []


@pytest.mark.parametrize("version", [each.rpartition(".")[0] for each in VERSIONS])
def test_every_object_is_valid(release: Release, version: str) -> None:
    schemas = SCHEMAS[version]
    for each in release.objects:
        if each["apiVersion"] == "monitoring.coreos.com/v1":
            (endpoint,) = each["spec"]["podMetricsEndpoints"]
            assert (each["kind"], set(endpoint) <= POD_MONITOR) == ("PodMonitor", True)
            continue
        schema = {"$defs": schemas["$defs"], **schemas["kinds"][each["kind"]]}
        problems = [str(error) for error in jsonschema_rs.validator_for(schema).iter_errors(dict(each))]
        assert problems == [], each["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"])
    names = [(each["kind"], each["metadata"]["name"]) for each in release.objects]
    assert len(names) == len(set(names))


def test_selectors_select_the_pods_that_are_meant(release: Release) -> None:
    for component, each in release.controllers.items():
        assert release.selected(each["spec"]["selector"]["matchLabels"]) == {component}
        for spread in each["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            assert release.selected(spread["labelSelector"]["matchLabels"]) == {component}
    selected = {each["metadata"]["name"]: release.selected(each["spec"]["selector"]) for each in release.of("Service")}
    fleet = "worker" in release.controllers
    name = release.controllers["gateway"]["metadata"]["name"]
    joining = {f"{name}-join": {"gateway"}, f"{name}-worker": {"worker"}} if fleet else {}
    assert selected == {name: {"gateway"}} | joining
    for kind, component in (("PodMonitor", "gateway"), ("PodDisruptionBudget", "worker")):
        for each in release.of(kind):
            assert release.selected(each["spec"]["selector"]["matchLabels"]) == {component}
    assert bool(release.of("PodDisruptionBudget")) is fleet


def test_ports_are_those_of_the_settings(release: Release, case: str, written: dict[str, Path]) -> None:
    settings = load({}, written["gateway"])
    ports = {each["name"]: each["containerPort"] for each in release.container("gateway")["ports"]}
    assert ports["http"] == settings.port
    for service in release.of("Service"):
        for port in service["spec"].get("ports", ()):
            assert port["targetPort"] in ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = release.container("gateway")[probe]["httpGet"]
        assert (request["port"], request["scheme"]) == ("http", "HTTPS" if settings.tls_cert else "HTTP")
    if "worker" not in release.controllers:
        assert set(ports) == {"http"}
        return
    (join,) = load({}, written["worker"]).join
    address = urlsplit(join)
    service = release.named("Service", str(address.hostname).partition(".")[0])
    assert address.hostname == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert (address.port, service["spec"]["ports"][0]["targetPort"]) == (service["spec"]["ports"][0]["port"], "join")
    assert service["spec"]["publishNotReadyAddresses"] is True, "a gateway is ready only when workers have joined"
    pod = "fd00::1" if CASES[case].get("ipFamily") == "IPv6" else "10.1.2.3"
    listens = release.environment("gateway")["BATON_LISTEN_WORKERS"].replace("$(POD_IP)", pod)
    assert join_address(listens, public=False) == (pod, ports["join"])
    assert release.controllers["worker"]["spec"]["serviceName"] in {
        each["metadata"]["name"] for each in release.of("Service")
    }


def test_the_settings_can_be_loaded(
    release: Release, case: str, written: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for component, file in written.items():
        with monkeypatch.context() as patch:
            for name, value in release.environment(component).items():
                if name.startswith("BATON_") and name != CONFIG_VARIABLE:
                    patch.setenv(name, value.replace("$(POD_IP)", "10.1.2.3"))
            settings = load({}, file)
        if component == "gateway":
            made = gateway_settings(settings)
            assert (made.host, made.port) == ("::" if case == "open" else "0.0.0.0", 8000)
        for name, value in {
            **CASES[case].get("settings", {}),
            **CASES[case][_part(component)].get("settings", {}),
        }.items():
            given = getattr(settings, name)
            if component == "worker" or settings.workers or name not in CASES[case].get("settings", {}):
                assert set(given) >= set(value) if isinstance(value, list) else given == value, name


def _part(component: str) -> str:
    return {"gateway": "gateway", "worker": "workers"}[component]


def test_every_variable_is_a_setting_and_no_other_one_comes_from_a_service(release: Release) -> None:
    """A Service named baton would set BATON_PORT=tcp://..."""
    for component in release.pods:
        names = {each["name"] for each in release.container(component)["env"]}
        of_baton = {name.removeprefix("BATON_").lower() for name in names if name.startswith("BATON_")}
        assert of_baton - {"config"} <= set(Settings.model_fields)
    assert {each["enableServiceLinks"] for each in release.pod_specs()} == {False}


def test_mounts_have_volumes_and_settings_name_files_below_them(release: Release, written: dict[str, Path]) -> None:
    for component, pod in release.pods.items():
        volumes = {each["name"] for each in pod["volumes"]}
        claims = release.controllers[component]["spec"].get("volumeClaimTemplates", ())
        volumes |= {each["metadata"]["name"] for each in claims}
        mounts = release.container(component)["volumeMounts"]
        used = [*mounts, *(mount for each in pod.get("initContainers", ()) for mount in each["volumeMounts"])]
        assert {each["name"] for each in used} == volumes, component
        settings, variables = load({}, written[component]), release.environment(component)
        paths = [settings.tls_cert, settings.tls_key, settings.api_keys_file, settings.key_file]
        if settings.keys_dir:
            paths += [f"{settings.keys_dir}/{name}" for name in ("gateway.key", AllowList(Path("/")).folder.name)]
        written_to = [
            variables[each] for each in ("BATON_CACHE_DIR", "HF_HOME", "BATON_HEALTH_FILE") if each in variables
        ]
        for path in filter(None, [*paths, *written_to, variables[CONFIG_VARIABLE]]):
            (mount,) = (each for each in mounts if Path(path).is_relative_to(each["mountPath"]))
            assert path not in written_to or not mount.get("readOnly")
            assert path not in written_to or mount["mountPath"] != path, "a volume's own folder is everybody's"


def test_graphs_of_the_image_are_copied_to_where_they_are_looked_for(release: Release) -> None:
    dockerfile = (CHART.parents[1] / "docker" / "Dockerfile").read_text()
    for component, pod in release.pods.items():
        for each in pod.get("initContainers", ()):
            *_, source, target = each["command"]
            assert f"BATON_CACHE_DIR={source} " in dockerfile.replace("\\\n", " ").replace("    ", "")
            assert release.environment(component)["BATON_CACHE_DIR"] == f"{target}/{Path(source).name}"
            assert target in {mount["mountPath"] for mount in each["volumeMounts"]}
    computes = {name for name, pod in release.pods.items() if pod.get("initContainers")}
    assert computes == {name for name in release.pods if "BATON_CACHE_DIR" in release.environment(name)}


@pytest.mark.skipif(sys.platform != "linux", reason="the image has GNU's cp")
def test_graphs_are_copied_again_only_if_the_image_has_newer_ones(releases: dict[str, Release], tmp_path: Path) -> None:
    (container,) = releases["single"].pods["gateway"]["initContainers"]
    *options, source, target = container["command"]
    image, volume = tmp_path / source.strip("/"), tmp_path / target.strip("/")
    image.mkdir(parents=True)
    volume.mkdir()
    command = [*options, str(image), str(volume)]
    (image / "old").write_text("1")
    (image / "new").write_text("1")
    subprocess.run(command, check=True, timeout=60)
    copied = volume / image.name
    (copied / "own").write_text("of the worker")
    before = {file.name: (file.stat().st_ino, file.read_text()) for file in copied.iterdir()}
    (image / "new").write_text("2")
    os.utime(image / "new", (2e9, 2e9))
    with (copied / "new").open() as mapped:
        subprocess.run(command, check=True, timeout=60)
        assert mapped.read() == "1"
    after = {file.name: (file.stat().st_ino, file.read_text()) for file in copied.iterdir()}
    assert after.pop("new")[1] == "2"
    assert before.pop("new")[1] == "1"
    assert after == before


def test_pods_keep_the_restricted_standard(release: Release) -> None:
    """Kubernetes' pod security standard "restricted", with a read-only root and no token for its API."""
    for pod in release.pod_specs():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
        kinds = {next(key for key in volume if key != "name") for volume in pod.get("volumes", ())}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}


def test_a_pod_has_time_to_drain(release: Release, written: dict[str, Path]) -> None:
    pod, container = release.pods["gateway"], release.container("gateway")
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert command[0] == "sleep"
    needed = int(command[1]) + load({}, written["gateway"]).shutdown_grace_s + WORKERS_END_S
    assert needed < pod["terminationGracePeriodSeconds"] <= needed + 10
    if "worker" in release.pods:
        limits = Deadlines()
        assert release.pods["worker"]["terminationGracePeriodSeconds"] > limits.stop + limits.term


def test_secrets_are_in_secrets_alone(release: Release, written: dict[str, Path]) -> None:
    for component, file in written.items():
        assert not SECRETS & set(load({}, file).model_fields_set)
        for each in release.container(component)["env"]:
            secret = each["name"].removeprefix("BATON_").lower() in SECRETS or each["name"] == "HF_TOKEN"
            assert ("secretKeyRef" in each.get("valueFrom", {})) is secret
            assert not each.get("valueFrom", {}).get("secretKeyRef", {}).get("optional"), (
                "without it nobody is kept out"
            )
    for component, pod in release.pods.items():
        for volume in pod["volumes"]:
            assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440
        mounts = [each for each in release.container(component)["volumeMounts"] if each["name"] == "key"]
        assert all(each.get("subPathExpr") or each.get("subPath") for each in mounts), "its own key, and no other"


def test_a_gateway_is_replaced_without_waiting_for_what_waits_for_its_end(
    release: Release, written: dict[str, Path]
) -> None:
    """A gateway without workers of its own is ready when others have joined it, which the old one keeps until its
    end."""
    spec = release.controllers["gateway"]["spec"]
    computes = load({}, written["gateway"]).workers > 0
    assert spec["strategy"]["type"] == ("RollingUpdate" if computes else "Recreate")
    assert spec["replicas"] == 1


@pytest.mark.anyio
async def test_probes_get_what_they_mean_from_a_real_server(releases: dict[str, Release]) -> None:
    """Without a key, under the address of a pod, with a worker that is ready and without one."""
    container = releases["single"].container("gateway")
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    async with serving(host="0.0.0.0", api_key="k") as served:

        async def status(probe: str) -> int:
            return (await served.client.get(paths[probe], headers={"host": "10.1.2.3:8000"})).status_code

        assert [await status(probe) for probe in paths] == [200, 200, 200]
        served.worker.die()
        assert [await status(probe) for probe in paths] == [200, 200, 503]


def test_probes_of_a_worker_run_the_check_of_the_image(releases: dict[str, Release]) -> None:
    container = releases["fleet"].container("worker")
    command = container["readinessProbe"]["exec"]["command"]
    dockerfile = (CHART.parents[1] / "docker" / "Dockerfile").read_text()
    assert command[0] == "python3"
    assert f"COPY deploy/docker/healthcheck.py {command[1]}\n" in dockerfile
    assert "livenessProbe" not in container, "a worker whose gateway is gone keeps its model"


def test_arguments_are_commands(release: Release) -> None:
    for component, words in (("gateway", ["serve"]), ("worker", ["worker"])):
        if component in release.pods:
            assert release.container(component)["args"] == words
    for pod in release.of("Pod"):
        command, *flags = pod["spec"]["containers"][0]["args"]
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert all(flag.partition("=")[0] in shown.output for flag in flags), shown.output
        url = urlsplit(dict(flag.partition("=")[::2] for flag in flags)["--url"])
        service = release.named("Service", str(url.hostname))
        assert url.port == service["spec"]["ports"][0]["port"]


# Flows.


def allows(release: Release, policy: Any, direction: str, peer: dict[str, Any], port: str) -> bool:
    """A flow is allowed by a policy. `peer` has `component`, or `labels` and `namespace` (its labels), or `address`."""
    for rule in policy["spec"].get(direction, ()):
        ports = [str(each["port"]) for each in rule.get("ports", ())]
        if ports and port not in ports:
            continue
        peers = rule.get("from" if direction == "ingress" else "to")
        if not peers or any(_matches(release, each, peer) for each in peers):
            return True
    return False


def _matches(release: Release, selector: dict[str, Any], peer: dict[str, Any]) -> bool:
    if "ipBlock" in selector:
        if "address" not in peer:
            return False
        address, block = ip_network(peer["address"]), selector["ipBlock"]
        inside = [ip_network(each) for each in (block["cidr"], *block.get("except", ()))]
        same = [each for each in inside if each.version == address.version]
        return bool(same) and ip_network(block["cidr"]) in same and not any(map(address.subnet_of, same[1:]))  # type: ignore[arg-type]
    labels = release.labels[peer["component"]] if "component" in peer else peer.get("labels")
    if labels is None:
        return False
    namespace = peer.get("namespace", {})
    wanted = selector.get("namespaceSelector", {}).get("matchLabels", {})
    if "namespaceSelector" in selector:
        if not wanted.items() <= namespace.items():
            return False
    elif namespace:
        return False
    return bool(selector.get("podSelector", {}).get("matchLabels", {}).items() <= labels.items())


OTHER_POD = {"labels": {"app": "other"}}
ELSEWHERE = {"labels": {"app": "other"}, "namespace": {"kubernetes.io/metadata.name": "other"}}
ENVOY = {"labels": {"app": "envoy"}, "namespace": {"kubernetes.io/metadata.name": "gateways"}}
PROMETHEUS = {
    "labels": {"app.kubernetes.io/name": "prometheus"},
    "namespace": {"kubernetes.io/metadata.name": "monitoring"},
}
IN_MONITORING = {"labels": {"app": "other"}, "namespace": {"kubernetes.io/metadata.name": "monitoring"}}
COLLECTOR = {"labels": {"app": "collector"}}
HUB, METADATA, CLUSTER = {"address": "192.0.2.1/32"}, {"address": "169.254.169.254/32"}, {"address": "10.0.0.1/32"}
GATEWAY, WORKER, TEST = {"component": "gateway"}, {"component": "worker"}, {"component": "test"}


@pytest.mark.parametrize(
    ("name", "component", "direction", "port", "allowed", "refused"),
    [
        ("single", "gateway", "ingress", "http", [OTHER_POD, TEST], [ELSEWHERE]),
        ("single", "gateway", "ingress", "join", [], [OTHER_POD, ELSEWHERE]),
        ("single", "gateway", "egress", "443", [HUB], [METADATA, CLUSTER, OTHER_POD]),
        ("single", "gateway", "egress", "80", [], [HUB, OTHER_POD]),
        (
            "fleet",
            "gateway",
            "ingress",
            "http",
            [ENVOY, PROMETHEUS, TEST],
            [OTHER_POD, ELSEWHERE, IN_MONITORING, WORKER],
        ),
        ("fleet", "gateway", "ingress", "join", [WORKER], [OTHER_POD, ENVOY, TEST, PROMETHEUS]),
        ("fleet", "gateway", "egress", "4318", [COLLECTOR], [HUB, OTHER_POD, WORKER]),
        ("fleet", "gateway", "egress", "443", [], [HUB, METADATA]),
        ("fleet", "worker", "ingress", "http", [], [OTHER_POD, ENVOY, GATEWAY, PROMETHEUS, TEST]),
        ("fleet", "worker", "ingress", "join", [], [GATEWAY, WORKER]),
        ("fleet", "worker", "egress", "join", [GATEWAY], [OTHER_POD, WORKER, HUB]),
        ("fleet", "worker", "egress", "http", [], [GATEWAY, OTHER_POD, HUB]),
        ("fleet", "worker", "egress", "443", [], [HUB, CLUSTER]),
        ("fleet", "worker", "egress", "53", [OTHER_POD, CLUSTER, ELSEWHERE], []),
    ],
)
def test_the_policy_of_the_network_allows_what_is_needed_and_nothing_else(
    releases: dict[str, Release],
    name: str,
    component: str,
    direction: str,
    port: str,
    allowed: list[dict[str, Any]],
    refused: list[dict[str, Any]],
) -> None:
    release = releases[name]
    policies = [
        each
        for each in release.of("NetworkPolicy")
        if component in release.selected(each["spec"]["podSelector"]["matchLabels"])
    ]
    (policy,) = policies
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    ports = {each["name"]: str(each["containerPort"]) for each in release.container("gateway")["ports"]}
    number = ports.get(port, port)
    flows = [(peer, allows(release, policy, direction, peer, number)) for peer in [*allowed, *refused]]
    assert flows == [(peer, True) for peer in allowed] + [(peer, False) for peer in refused]


def test_without_a_policy_there_is_none(releases: dict[str, Release]) -> None:
    assert releases["open"].of("NetworkPolicy") == []


# The values.


def test_the_schema_and_the_values_have_the_same_names() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(where: str, schema: dict[str, Any], value: Any) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False
            assert set(schema["properties"]) - {"global"} == set(value), where
            for name, each in value.items():
                compare(f"{where}.{name}", schema["properties"][name], each)

    compare("", schema, values)
    assert list(jsonschema_rs.validator_for(schema).iter_errors(values)) == []


def test_every_value_is_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(file.read_text() for file in sorted((CHART / "templates").rglob("*.*")))

    def names(value: Any) -> set[str]:
        if not isinstance(value, dict):
            return set()
        return set(value) | {name for each in value.values() for name in names(each)}

    values["gateway"]["resources"] = values["workers"]["resources"] = {}
    for name in names(values):
        assert re.search(rf"\.{name}\b|\"{name}\"", templates), name


def test_the_version_is_that_of_the_package() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == baton_serve.__version__
    assert about["kubeVersion"] == f">={VERSIONS[0]}-0"


def test_the_notes_say_how_to_reach_it(releases: dict[str, Release]) -> None:
    for name, release in releases.items():
        gateway = release.controllers["gateway"]["metadata"]["name"]
        assert f"://{gateway}.{NAMESPACE}.svc:8000/v1" in release.notes
        assert ("may use it" in release.notes) is (name == "open")
        for line in release.notes.splitlines():
            if line.startswith("  kubectl"):
                words = shlex.split(line)
                assert words[:3] == ["kubectl", "--namespace", NAMESPACE]
                assert f"deployment/{gateway}" in words
