"""The table of timeouts in the operations guide has every time limit of the code, with its value."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

from actors.join.listener import JoinLimits
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from gateway.settings import GatewaySettings
from workers.process.gateways.connection import RETRY

ROOT = Path(__file__).parents[2]
FOLDERS = ("actors/join", "actors/supervision", "actors/transport", "gateway/http", "gateway/routing")
FILES = (
    "actors/process/child.py",
    "gateway/admin/adapters/adapter_sources.py",
    "gateway/fleet/remote_join.py",
    "gateway/fleet/steps.py",
    "protocol/events.py",
    "workers/process/gateway_link.py",
    "workers/process/gateways/connection.py",
    "workers/process/service.py",
)
OBJECTS: dict[str, object] = {
    "Deadlines": Deadlines(),
    "JoinLimits": JoinLimits(),
    "RestartPolicy": RestartPolicy(),
    "RETRY": RETRY,
}
"""Values whose fields are time limits."""
OTHERS = {
    "allow_list.RACY_S": "the resolution of a file's time",
    "charges.MAX_RETRY_AFTER_S": "bounds a header",
    "drain_rate.MEMORY_S": "the time constant of a mean",
    "handshakes.HANDSHAKES_S": "bounds a turn of the event loop",
    "join_tokens.MAX_VALID_S": "the longest life of a join token, which is no part of a request's way",
    "join_tokens.VALID_S": "the same, unless another is asked for",
    "local.REST_S": "gives way to other work",
    "log_limit.PER_S": "a rate",
    "loop_turn.LONGEST_S": "bounds a turn of the event loop",
    "origins.PREFLIGHT_S": "for a browser's cache",
    "prefill_choice.LONG_S": "a length of prompts",
    "quarantine.REMEMBERED_S": "the memory of requests that killed workers",
    "time_limits.LEAST_S": "the least value of a header",
    "row_transfers.MEASURED_S": "the memory of a measurement",
    "unix_socket.LOCK_S": "of the start alone",
    "wait_queue.CLOCK_RESOLUTION_S": "of the clock",
    "zmq_socket.NEVER_MS": "stands for never",
    "JoinLimits.attempts_per_s": "a rate",
}
"""Names that end like those of time limits, and are none; or no limits of the way of a request."""
ROW = re.compile(r"^\| `([\w.]+)` \| ([\d.]+) s \|.*\|$", re.MULTILINE)


def listed() -> dict[str, float]:
    text = (ROOT / "docs" / "operations" / "limits.md").read_text()
    _, _, after = text.partition("\n## Timeouts\n")
    section, _, _ = after.partition("\n#")
    rows = ROW.findall(section)
    assert len(rows) == len(re.findall(r"^\| `", section, re.MULTILINE)), "each row has a name and seconds"
    assert len(rows) == len(dict(rows)), "a name stands once"
    return {name: float(seconds) for name, seconds in rows}


def constants() -> dict[str, float]:
    found: dict[str, float] = {}
    files = [ROOT / file for file in FILES]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*.py")
    for file in files:
        module = importlib.import_module(file.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
                name = f"{file.stem}.{target.id}"
                if target.id.endswith(("_S", "_MS")) and not target.id.startswith("_") and name not in OTHERS:
                    assert name not in found, f"two modules have {name}"
                    value = float(getattr(module, target.id))
                    found[name] = value / 1000 if name.endswith("_MS") else value
    return found


def fields() -> dict[str, float]:
    settings = GatewaySettings()
    names = [field.name for field in dataclasses.fields(settings) if field.name.endswith("_s")]
    found = {name: getattr(settings, name) for name in names}
    for name, value in OBJECTS.items():
        assert dataclasses.is_dataclass(value)
        for field in dataclasses.fields(value):
            if name == "Deadlines" or field.name.endswith("_s"):
                found[f"{name}.{field.name}"] = getattr(value, field.name)
    return {name: float(value) for name, value in found.items() if name not in OTHERS}


def test_every_timeout_is_listed_with_its_value() -> None:
    expected = constants() | fields()
    for name in ("retry_after_s", "Deadlines.hang_factor"):
        expected.pop(name)  # the least `Retry-After`, and a factor
    assert listed() == expected


def test_what_is_no_timeout_exists() -> None:
    names = [name for name in OTHERS if "." in name and name.partition(".")[0] not in OBJECTS]
    stems = {file.stem: file.read_text() for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    for name in names:
        module, _, constant = name.partition(".")
        assert re.search(rf"^{constant} = ", stems[module], re.MULTILINE), name
