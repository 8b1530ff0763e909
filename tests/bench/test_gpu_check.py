"""The command that meets a GPU first: its parts on a CPU, so that nothing but the GPU is new to it there."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

import jax

from bench import gpu_check, gpu_stages
from bench.gpu_check import Outcome, Stage, agreement, run, run_all, stages, table
from bench.gpu_stages import SLOTS, STEPS, Result
from tests.compiling import compiling_here
from workers.iree.device.drivers import GENERIC_DEVICE

SCRIPT = """import json, sys, time
kind, *_, out = sys.argv[1:]
if kind == "hang":
    time.sleep(600)
if kind == "fail":
    raise SystemExit("the driver exploded")
if kind != "silent":
    json.dump({"text": "done", "skipped": kind == "skip"}, open(out, "w"))
"""


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
        ("silent", 60, "FAIL", "status 0: no word"),
        ("hang", 0.5, "FAIL", "no end within 0.5 s"),
        ("good", 0, "SKIP", "no time is left"),
    ],
)
def test_how_a_stage_may_end(kind: str, limit_s: float, verdict: str, words: str) -> None:
    outcome = run(Stage(kind, (kind,), 60), limit_s)
    assert (outcome.verdict, outcome.result.text) == (verdict, words)


@pytest.mark.usefixtures("_scripted")
def test_one_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    planned = [Stage("first", ("fail",), 60), Stage("second", ("good",), 60)]
    assert [outcome.verdict for outcome in run_all(planned, 1)] == ["FAIL", "PASS"]
    assert "FAIL first" in capsys.readouterr().out
    assert [outcome.verdict for outcome in run_all(planned, 0)] == ["SKIP", "SKIP"]


def test_the_gate_comes_before_what_takes_long_and_again_after(tmp_path: Path) -> None:
    names = [stage.name for stage in stages("cuda", "bfloat16", ["110m"], tmp_path)]
    assert names[:3] == ["doctor", "memory", "gate llama float32"]
    assert names[3:5] == ["engine 110m", "jax 110m"]
    assert len(names) == 7
    assert "bfloat16" not in " ".join(stage.name for stage in stages("vulkan://0", "float32", [], tmp_path))


def outcome(name: str, verdict: str = "PASS", /, **figures: float) -> Outcome:
    return Outcome(Stage(name, (), 1), verdict, 1.0, Result("", figures, [[1, 2, 3], [4, 5, 6]]))


def test_the_table_has_both_executors_beside_the_limit() -> None:
    ours = Result("", {"step ms": 2.0, "step bytes": 1e9}, [[1, 2, 3], [4, 0, 6]])
    text = table(
        [
            outcome("memory", bandwidth=1e12),
            Outcome(Stage("engine 110m", (), 1), "PASS", 1.0, ours),
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


@pytest.fixture
def _jax_as_it_was() -> Iterator[None]:
    """A stage has a process of its own, where it may look for more than the CPU."""
    yield
    jax.config.update("jax_platforms", "cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("_jax_as_it_was")
def test_both_executors_generate_the_same(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU would, in fewer graphs."""
    monkeypatch.setattr(gpu_stages, "CONTEXT", 64)
    monkeypatch.setattr(gpu_stages, "PREFILL", 32)
    with compiling_here():
        ours = gpu_stages.engine(GENERIC_DEVICE, cache_dir, "tiny", "float32")
    theirs = gpu_stages.jax_executor(GENERIC_DEVICE, cache_dir, "tiny", "float32")
    assert ours.tokens == theirs.tokens
    assert [len(tokens) for tokens in ours.tokens] == [STEPS] * SLOTS
    for result in (ours, theirs):
        assert {"load s", "step ms", "prefill"} <= set(result.figures)


@pytest.mark.usefixtures("_jax_as_it_was")
def test_jax_says_when_it_sees_no_gpu(tmp_path: Path) -> None:
    result = gpu_stages.jax_executor("cuda", tmp_path, "tiny", "bfloat16")
    if not result.skipped:
        pytest.skip("it does")
    assert result.text == "JAX sees cpu and no gpu here: pip install 'jax[cuda12]'"


def test_the_small_stages(tmp_path: Path, cache_dir: Path) -> None:
    out = tmp_path / "out.json"
    gpu_stages.main("doctor", GENERIC_DEVICE, str(tmp_path), str(out))
    assert "matrix product right" in json.loads(out.read_text())["text"]
    assert gpu_stages.memory(GENERIC_DEVICE, cache_dir, 1 << 20).figures["bandwidth"] > 0
    with pytest.raises(ValueError, match="stage: 'dance' is not one of"):
        gpu_stages.main("dance", GENERIC_DEVICE, str(tmp_path), str(out))


def test_the_command_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--help"])
    with pytest.raises(SystemExit):
        gpu_check.main()
    assert "--compile-only" in capsys.readouterr().out
