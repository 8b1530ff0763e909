"""The container image: a linter accepts it, its context builds the wheel, and a builder, if there is one, builds it."""

import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from cli.config.settings import Settings
from gateway.daemon import WORKERS_END_S
from tests.baton_serve.installation import ROOT, build
from tests.baton_serve.test_distribution import contents
from tests.ports import port_for_later

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
GRACE_S = Settings.model_fields["shutdown_grace_s"].default
NEEDED_S = GRACE_S + WORKERS_END_S
"""Time that a gateway may take to end."""
BUILD_S = 1800.0


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments, in order."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(words[0], " ".join(words[1:])) for line in text.splitlines() if (words := line.split())]


def of_image(name: str) -> list[str]:
    """The arguments of an instruction of the last stage."""
    every = instructions()
    start = max(number for number, (instruction, _) in enumerate(every) if instruction == "FROM")
    return [arguments for instruction, arguments in every[start:] if instruction == name]


def services(*files: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files or ("compose.yaml", "compose.worker.yaml"):
        for name, service in yaml.safe_load((DOCKER / file).read_text())["services"].items():
            found[name] = {**found.get(name, {}), **service}
    return found


def test_hadolint_accepts_the_dockerfile() -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_runs_as_a_user_with_a_fixed_number_and_stops_on_sigterm() -> None:
    assert of_image("USER") == ["10001:10001"]
    assert of_image("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(of_image("ENTRYPOINT")[0]) == ["tini", "--", "baton"]
    assert json.loads(of_image("CMD")[0]) == ["serve"]
    assert json.loads(of_image("VOLUME")[0]) == ["/var/cache/baton"]


def test_versions_are_pinned_and_no_package_index_is_named() -> None:
    text = DOCKERFILE.read_text()
    assert "PIP_CONSTRAINT=/source/constraints.txt" in text
    assert not re.search(r"index[-_]url|find[-_]links|trusted[-_]host|https?://", text, re.IGNORECASE)
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert set(bases) == {"${PYTHON_IMAGE}"}
    for service in services().values():
        assert "image" in service
        assert service["image"] == "baton" or re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_the_variables_of_the_image_are_settings() -> None:
    names = re.findall(r"BATON_([A-Z_]+)=", " ".join(of_image("ENV")))
    names += [name.removeprefix("BATON_") for each in services().values() for name in each.get("environment", {})]
    assert {name.lower() for name in names} <= set(Settings.model_fields)


@pytest.mark.parametrize("name", list(services()))
def test_a_service_has_a_read_only_root_and_no_capabilities(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if service["image"] == "baton":
        assert "/run/baton:uid=10001,gid=10001,mode=0700" in service["tmpfs"]


def test_compose_waits_until_the_gateway_has_ended() -> None:
    assert int(services()["gateway"]["stop_grace_period"].removesuffix("s")) >= NEEDED_S


def test_the_networks_and_volumes_of_services_are_declared() -> None:
    """Also the default network, which not every program takes for granted."""
    files = [yaml.safe_load((DOCKER / name).read_text()) for name in ("compose.yaml", "compose.worker.yaml")]
    for kind in ("networks", "volumes"):
        declared = {name for file in files for name in file.get(kind, ())}
        used = {
            each.partition(":")[0]
            for file in files
            for service in file["services"].values()
            for each in service.get(kind, ())
        }
        assert {name for name in used if not name.startswith(".")} == declared, kind


def test_the_files_that_compose_mounts_exist() -> None:
    for service in services().values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists(), volume
    prometheus = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    assert prometheus["rule_files"] == ["baton.rules.yml"]
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["gateway:8000"]


def compose(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Docker Compose on both files, without what this process has in its environment."""
    command = ["docker-compose"]
    if shutil.which("docker-compose") is None:
        command = ["docker", "compose"]
        if shutil.which("docker") is None or subprocess.run([*command, "version"], capture_output=True).returncode:
            pytest.skip("Docker Compose is not installed")
    files = [word for name in ("compose.yaml", "compose.worker.yaml") for word in ("-f", str(DOCKER / name))]
    given = {"PATH": os.environ["PATH"]} | environment
    return subprocess.run([*command, *files, *words], env=given, capture_output=True, text=True, timeout=60)


def test_compose_resolves_its_files_to_what_they_say() -> None:
    shown = compose("--profile", "monitoring", "config", "--format", "json", BATON_SERVER_KEY="0" * 64)
    assert (shown.returncode, shown.stderr) == (0, "")
    resolved = json.loads(shown.stdout)["services"]
    assert set(resolved) == set(services())
    for name, service in resolved.items():
        assert service["read_only"] is True
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name
        for volume in service["volumes"]:
            assert volume["type"] == "volume" or (volume["read_only"] and Path(volume["source"]).exists()), volume
    gateway, worker = resolved["gateway"], resolved["worker"]
    assert gateway["environment"]["BATON_LISTEN_WORKERS"] == worker["environment"]["BATON_JOIN"]
    host = urlsplit(worker["environment"]["BATON_JOIN"]).hostname
    assert gateway["networks"]["workers"]["ipv4_address"] == host
    assert (set(worker["networks"]), set(gateway["networks"])) == ({"workers"}, {"workers", "default"})
    build = gateway["build"]
    assert Path(build["context"], build["dockerfile"]) == DOCKERFILE


def test_compose_asks_for_the_key_of_the_gateway() -> None:
    refused = compose("config", "--quiet")
    assert refused.returncode != 0
    assert refused.stderr.strip().endswith(
        "required variable BATON_SERVER_KEY is missing a value: the gateway's public key"
    )


def test_the_context_has_all_that_the_wheel_is_made_of(tmp_path: Path, wheel: Path) -> None:
    """Copy what the ignore file lets through. Its entries are whole folders and files."""
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], tmp_path / "context" / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    assert contents(build("wheel", tmp_path / "built", tmp_path / "context")) == contents(wheel)


# With a builder of images.


def builder() -> str:
    """`docker` or `podman`, whichever works and has the base image or can get it; empty if neither does."""
    base = dict(line.split("=", 1) for name, line in instructions() if name == "ARG" and "=" in line)["PYTHON_IMAGE"]
    for name in ("docker", "podman"):
        if shutil.which(name) is None or subprocess.run([name, "info"], capture_output=True).returncode:
            continue
        for command in (["image", "inspect", base], ["pull", "--quiet", base]):
            if subprocess.run([name, *command], capture_output=True, timeout=300).returncode == 0:
                return name
    return ""


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[str, str]]:
    """The builder, and an image that it has built."""
    name = builder()
    if not name:
        pytest.skip("no builder of images works here")
    tag = f"baton-test-{uuid.uuid4().hex[:12]}"
    ignored = ["--ignorefile", str(DOCKER / "Dockerfile.dockerignore")] if name == "podman" else []
    command = [name, "build", "--network", "host", *ignored, "-f", str(DOCKERFILE), "-t", tag, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    try:
        yield name, tag
    finally:
        subprocess.run([name, "rmi", "--force", tag], capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 300)
def test_the_image_serves_from_its_cache_with_a_read_only_root_and_stops_in_time(image: tuple[str, str]) -> None:
    name, tag = image
    port = port_for_later()
    hardened = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    places = ["--tmpfs", "/run/baton:mode=1777", "--tmpfs", "/tmp:mode=1777", "-e", f"BATON_PORT={port}"]
    command = [name, "run", "--detach", "--network", "host", *hardened, *places, tag]
    container = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def inside(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([name, "exec", container, *words], capture_output=True, text=True, timeout=60)

    try:
        until = time.monotonic() + 120
        while (healthy := inside("python3", "/usr/local/lib/baton/healthcheck.py")).returncode:
            assert time.monotonic() < until, healthy.stderr
            time.sleep(0.5)
        body = {"model": "baton-tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60, trust_env=False)
        assert "Paris" in answer.json()["choices"][0]["text"]
        assert inside("id", "-u").stdout.strip() == "10001"
        assert inside("touch", "/opt/baton/written").returncode != 0
        # After this time it would be killed, and its status another one.
        subprocess.run([name, "stop", "--time", f"{NEEDED_S:g}", container], check=True, capture_output=True)
        state = json.loads(subprocess.run([name, "inspect", container], capture_output=True, text=True).stdout)
        assert state[0]["State"]["ExitCode"] == 0
        shown = subprocess.run([name, "logs", container], capture_output=True, text=True)
        events = [json.loads(line)["event"] for line in (shown.stdout + shown.stderr).splitlines()]
        assert {"ready", "ended"} <= set(events)
    finally:
        subprocess.run([name, "rm", "--force", container], capture_output=True)
