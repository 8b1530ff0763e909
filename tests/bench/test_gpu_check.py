"""The check of a GPU: how its stages may end, and its table."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from bench import gpu_check
from bench.gpu.stages import Result, StageSpec
from bench.gpu_check import Stage, StageOutcome, agreement, run, run_all, stages, table
from workers.iree.device.drivers import GENERIC_DEVICE

SCRIPT = """import json, sys, time
spec = json.loads(sys.argv[1])
kind, out = spec["stage"], spec["out"]
if kind == "hang":
    time.sleep(600)
if kind == "fail":
    raise SystemExit("the driver exploded")
if kind != "silent":
    json.dump({"text": "done", "skipped": kind == "skip"}, open(out, "w"))
"""


def spec(stage: str) -> StageSpec:
    return StageSpec(stage, GENERIC_DEVICE, "")


@pytest.fixture
def _scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(gpu_check, "STAGES", script)


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize(
    ("kind", "limit_s", "verdict", "words"),
    [
        ("good", 60, "PASS", "done"),
        ("skip", 60, "SKIP", "done"),
        ("fail", 60, "FAIL", "status 1: the driver exploded"),
        ("silent", 60, "FAIL", "status 0: no output"),
        ("hang", 0.5, "FAIL", "no end within 0.5 s"),
        ("good", 0, "SKIP", "no time is left"),
    ],
)
def test_how_a_stage_may_end(kind: str, limit_s: float, verdict: str, words: str) -> None:
    outcome = run(Stage(kind, spec(kind), 60), limit_s)
    assert (outcome.verdict, outcome.result.text) == (verdict, words)


@pytest.mark.usefixtures("_scripted")
def test_a_failed_stage_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    planned = [Stage("first", spec("fail"), 60), Stage("second", spec("good"), 60)]
    assert [outcome.verdict for outcome in run_all(planned, 1)] == ["FAIL", "PASS"]
    assert "FAIL first" in capsys.readouterr().out
    assert [outcome.verdict for outcome in run_all(planned, 0)] == ["SKIP", "SKIP"]


def test_the_gate_comes_before_what_takes_long_and_again_after(tmp_path: Path) -> None:
    names = [stage.name for stage in stages("cuda", "bfloat16", ["110m"], tmp_path)]
    assert names[:3] == ["doctor", "memory", "gate llama float32"]
    assert names[3:5] == ["engine 110m", "jax 110m"]
    assert len(names) == 7
    assert "bfloat16" not in " ".join(stage.name for stage in stages("vulkan://0", "float32", [], tmp_path))


def outcome(name: str, verdict: str = "PASS", /, **figures: float) -> StageOutcome:
    return StageOutcome(Stage(name, spec(name), 1), verdict, 1.0, Result("", figures, [[1, 2, 3], [4, 5, 6]]))


def test_the_table_has_both_executors_beside_the_limit() -> None:
    ours = Result("", {"step ms": 2.0, "step bytes": 1e9}, [[1, 2, 3], [4, 0, 6]])
    text = table(
        [
            outcome("memory", bandwidth=1e12),
            StageOutcome(Stage("engine 110m", spec("engine"), 1), "PASS", 1.0, ours),
            outcome("jax 110m", **{"step ms": 1.5}),
        ]
    )
    assert "| IREE " in text
    assert "| JAX " in text
    assert "50%" in text
    assert "67%" in text
    assert "memory: 1000 GB/s" in text
    assert "agree on 4 of 6 tokens" in text


def test_the_table_of_nothing() -> None:
    assert table([outcome("doctor", "FAIL"), outcome("engine 110m", "FAIL")]).startswith("nothing was measured")
    assert agreement("x", [[1]], [[1]]).startswith("x: IREE and JAX agree on 1 of 1")


def test_the_command_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--help"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "--compile-only" in capsys.readouterr().out
