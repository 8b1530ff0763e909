"""A soak of seconds with scripted workers, whole: it runs clean, and it can fail."""

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from bench.soak import soak
from bench.soak_test.fault_plan import SoakPlan
from bench.soak_test.leaks import ServerSample
from bench.soak_test.report import plot, write_report
from bench.soak_test.verdict import Verdict
from cli.chaos.http_client import ClientRequest
from cli.chaos.transcript import Transcript


def test_ten_seconds_of_faults_lose_nothing(tmp_path: Path) -> None:
    plan = SoakPlan(
        seed=11,
        seconds=4.0,
        clients=12,
        requests=24,
        every_s=0.8,
        scripted=True,
        rate=150.0,
        workers=1,
        standby=1,
        slots=4,
        cache=tmp_path,
        sample_s=1.0,
        tokens=60,
    )
    before = dict(os.environ)
    result = soak(plan, tmp_path)
    assert dict(os.environ) == before, "only the server's processes have another environment"
    assert result.problems == []
    assert result.tally.shown == []
    assert result.tally.outcomes["answered"] >= 5
    assert sum(result.lives.values()) > 3, "some worker was started again"
    text = write_report(plan, result, tmp_path)
    assert "violated" in text
    assert len(json.loads((tmp_path / "samples.json").read_text())) == len(result.samples)
    assert "lost a worker" in text
    result.tally.count("one", ClientRequest("/v1/completions", {}), Transcript(), Verdict("altered", "so it was"))
    result.problems.append("something is left")
    assert "- something is left\n- one: altered: so it was" in write_report(plan, result, tmp_path)


def test_the_plot_shows_every_kind_of_fault(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    samples = [ServerSample(float(at), *[1] * (len(fields(ServerSample)) - 1)) for at in range(3)]
    plot(samples, [(0.5, "kill"), (1.5, "stop")], tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "kill from outside" in text
    assert "stop from outside" in text
