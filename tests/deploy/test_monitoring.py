"""The alert rules and the dashboard: they ask for metrics that exist, and a real Prometheus takes every query."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import yaml

from gateway.metrics.metrics import Metrics
from tests.gateway.harness.real import launch, real_gateway
from tests.gateway.harness.serving import COMPLETION

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "baton.rules.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "baton.json").read_text())
WAIT_S = 60.0
"""For Prometheus to start and to scrape."""
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="Prometheus is not installed"
)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_rules_are_those_of_the_guide() -> None:
    text = (ROOT / "docs" / "operations" / "observability.md").read_text()
    section = text.partition("\n## Alerts")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (.+?) \| `(.+?)` \| (\S+) \|", section, re.MULTILINE)
    assert [(each["annotations"]["summary"], each["expr"], each["for"]) for each in rules()] == listed


def test_every_query_of_the_dashboard_is_of_metrics_that_exist() -> None:
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", Metrics(lambda: (), dict, dict).render().decode(), re.MULTILINE))
    known = {name for name, kind in kinds.items() if kind != "histogram"}
    known |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    asked = {name for query in queries() for name in re.findall(r"\b(?:baton|process)_\w+", query)}
    assert asked
    assert asked <= known


def test_the_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A real Prometheus that scrapes `target` and itself; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [each]}]}
            for job, each in (("baton", target), ("prometheus", f"127.0.0.1:{port}"))
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


@needs_prometheus
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


MODEL = {"model": "m"}
WORKER = MODEL | {"worker": "w"}
OF_WORKER = WORKER | {"backend": "iree"}


def series(metric: str, values: str, **labels: str) -> dict[str, str]:
    named = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return {"series": f"{metric}{{{named}}}", "values": values}


def slow_answers(values: str) -> list[dict[str, str]]:
    """Times to the first token of more than 10 s, as the count of each bucket."""
    return [
        series("baton_time_to_first_token_seconds_bucket", each, le=bound, **OF_WORKER)
        for bound, each in (("10", "0x30"), ("30", values), ("+Inf", values))
    ]


REFUSALS = {"route": "/v1/completions", "status": "429", "reason": "overloaded"}
FIRES: dict[str, tuple[list[dict[str, str]], str, str, dict[str, str]]] = {
    "BatonNoMetrics": ([series("baton_connections", "0 0 _ stale _ _ _ _ _ _")], "1m", "4m", {}),
    "BatonAModelIsNotServed": ([series("baton_worker_ready", "1 0 0 0 0", **OF_WORKER)], "2m", "3m", MODEL),
    "BatonRequestsWaitForAWorker": ([series("baton_waiting_sequences", "0 2x20", **MODEL)], "10m", "11m", MODEL),
    "BatonWorkersFail": (
        [series("baton_worker_restarts_total", "0 1 2 3 4 5", **OF_WORKER)],
        "2m",
        "4m",
        OF_WORKER,
    ),
    "BatonFrontsFail": (
        [series("baton_front_restarts_total", "0 1 2 3 4 5", front="0")],
        "2m",
        "4m",
        {"front": "0"},
    ),
    "BatonAWorkersRequestsKeepFailing": (
        [series("baton_worker_circuit_open", "0 1x10", **OF_WORKER)],
        "2m",
        "3m",
        WORKER,
    ),
    "BatonAPoisonRequest": (
        [series("baton_replays_total", "_ _ _ 1 1", outcome="quarantined", **MODEL)],
        "2m",
        "3m",
        MODEL | {"outcome": "quarantined"},
    ),
    "BatonRequestsLoseTheirWorkerForGood": (
        [series("baton_sequences_ended_total", "_ _ _ 1 1", outcome="worker_lost", **OF_WORKER)],
        "2m",
        "3m",
        OF_WORKER | {"outcome": "worker_lost"},
    ),
    "BatonInternalErrors": (
        [series("baton_sequences_ended_total", "_ _ _ 1 1", outcome="internal_error", **OF_WORKER)],
        "2m",
        "3m",
        OF_WORKER | {"outcome": "internal_error"},
    ),
    "BatonNoFreeSlots": (
        [series("baton_slots_available", "0x20", **OF_WORKER), series("baton_queue_depth", "0 3x20", **OF_WORKER)],
        "10m",
        "11m",
        MODEL,
    ),
    "BatonSlowFirstTokens": (slow_answers("0 0+10x30"), "10m", "13m", MODEL),
    "BatonConnectionsRefused": ([series("baton_connections_refused_total", "0 0 2 2")], "1m", "2m", {}),
    "BatonABusyEventLoop": ([series("baton_event_loop_lag_seconds", "0.5 0.6x10")], "5m", "6m", {}),
    "BatonManyRefusals": (
        [series("baton_http_responses_total", "0+61x20", **REFUSALS)],
        "13m",
        "16m",
        {name: REFUSALS[name] for name in ("route", "reason")},
    ),
    "BatonRequestBodiesNearTheirBound": ([series("baton_body_bytes", "214748364 214748365x10")], "5m", "6m", {}),
    "BatonUnknownKeysOnTheWorkerPort": (
        [series("baton_link_refused_total", "0 0 1 1", reason="key")],
        "1m",
        "2m",
        {"reason": "key"},
    ),
}
"""For each alert series that fire it, a time at which it does not fire yet, the first at which it does, and the labels
that it then has. They are a minute apart, or as much as `for` and the range of the rule make necessary."""


def test_every_alert_has_a_case() -> None:
    assert set(FIRES) == {each["alert"] for each in rules()}


@needs_prometheus
def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    cases = []
    for name, (given, before, after, labels) in FIRES.items():
        alert = {"exp_labels": {**rule(name)["labels"], **labels}, "exp_annotations": rule(name)["annotations"]}
        expected = [(before, []), (after, [alert])]
        asked = [{"eval_time": at, "alertname": name, "exp_alerts": alerts} for at, alerts in expected]
        cases.append({"interval": "1m", "input_series": given, "alert_rule_test": asked})
    check_rules(tmp_path, cases)


def rule(name: str) -> dict[str, Any]:
    return next(each for each in rules() if each["alert"] == name)


@needs_prometheus
@pytest.mark.parametrize(
    ("name", "metric", "labels"),
    [
        ("BatonAPoisonRequest", "baton_replays_total", {"model": "m", "cause": "died", "outcome": "quarantined"}),
        ("BatonRequestsLoseTheirWorkerForGood", "baton_sequences_ended_total", {"outcome": "worker_lost"}),
        ("BatonInternalErrors", "baton_sequences_ended_total", {"outcome": "internal_error"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_count_of_an_outcome_fires_for_a_quarter_of_an_hour(
    tmp_path: Path, name: str, metric: str, labels: dict[str, str]
) -> None:
    """Its series does not exist before."""
    alert = {"exp_labels": {**rule(name)["labels"], **labels}, "exp_annotations": rule(name)["annotations"]}
    expected = [("2m", []), ("3m", [alert]), ("17m", [alert]), ("19m", [])]
    case = {
        "interval": "1m",
        "input_series": [series(metric, "_ _ _ 1x30", **labels)],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": alerts} for at, alerts in expected],
    }
    check_rules(tmp_path, [case])


def check_rules(folder: Path, cases: list[dict[str, Any]]) -> None:
    """Let promtool run these cases over the rules."""
    file = folder / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@pytest.mark.anyio
@pytest.mark.timeout(3 * WAIT_S)
async def test_a_real_prometheus_scrapes_a_gateway_and_answers_every_query(tmp_path: Path) -> None:
    async with real_gateway(launch("a"), metrics_names="vllm") as real:
        answer = await real.client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 200
        target = f"127.0.0.1:{real.client.base_url.port}"
        with prometheus(tmp_path, target) as url:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                with anyio.fail_after(WAIT_S):
                    while await value(client, "sum(baton_time_to_first_token_seconds_count)") != "1":  # noqa: ASYNC110
                        await anyio.sleep(0.2)
                    while await value(client, "count(process_resident_memory_bytes)") != "2":  # noqa: ASYNC110
                        await anyio.sleep(0.2)
                assert await value(client, 'up{job="baton"}') == "1"
                assert await value(client, "sum(vllm:time_to_first_token_seconds_count)") == "1"
                (of_gateway,) = (query for query in queries() if "process_resident" in query)
                assert await value(client, f"count({of_gateway})") == "1", "and not every process that is scraped"
                for query in queries():
                    filled = query.replace("$model", ".*").replace("$__rate_interval", "1m")
                    found = await client.get("/api/v1/query", params={"query": filled})
                    assert found.json()["status"] == "success", (query, found.text)
                loaded = (await client.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
    assert [each["name"] for each in loaded] == [each["alert"] for each in rules()]
    assert {each["health"] for each in loaded} <= {"ok", "unknown"}


async def value(client: httpx.AsyncClient, query: str) -> str | None:
    """The value of a query with one result; None without any, or while Prometheus starts."""
    try:
        found = (await client.get("/api/v1/query", params={"query": query})).json()
    except (httpx.TransportError, json.JSONDecodeError):
        return None
    result = found["data"]["result"] if found["status"] == "success" else []
    return str(result[0]["value"][1]) if result else None
