"""The output of `baton compile`, also for a backend without graphs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("iree.compiler", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from cli.commands import compile as compile_module
from cli.commands.compile import compile_model
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings
from cli.main import app
from models import builtin_path, draft_path
from workers.iree.build.compile_client import Built
from workers.iree.device.cpu import Cpu
from workers.load_options import Progress
from workers.process.spec import WorkerSpec


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Yield two modules, one of them from the cache."""
    file = tmp_path / "module.vmfb"
    file.write_bytes(b"m" * 2048)

    def compile_ahead(spec: WorkerSpec, progress: Progress) -> Iterator[Built]:
        assert spec == worker_spec(Settings(max_batch_size=3), ChosenModel.choose(Settings()), workers=2)
        progress("compile graphs", 0, 2)
        yield Built(("decode_3",), file, None)
        yield Built(("unfiltered_1", "filter_1"), file, 4.5)

    monkeypatch.setattr(compile_module, "compile_ahead", compile_ahead)
    return Settings(max_batch_size=3, workers=2)


def test_a_line_for_each_module(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(settings, as_json=False)
    out = capsys.readouterr().out
    assert "decode_3" in out
    assert "in the cache" in out
    assert "unfiltered_1 filter_1" in out
    assert "4.5" in out
    assert "2 modules, 0.0 MiB" in out


def test_as_json(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(settings, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["modules"][1] == {"graphs": ["unfiltered_1", "filter_1"], "bytes": 2048, "seconds": 4.5}
    assert report["seconds"] >= 0


def test_the_graphs_of_a_draft_model_are_compiled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_ahead(spec: WorkerSpec, progress: Progress) -> Iterator[Built]:
        compiled.append(spec.model_path)
        return iter(())

    monkeypatch.setattr(compile_module, "compile_ahead", compile_ahead)
    settings = Settings(speculate="auto", draft_model=str(draft_path()), cache_dir=str(tmp_path), context=64)
    compile_model(settings, as_json=False)
    assert compiled == [str(builtin_path()), str(draft_path())]


@pytest.mark.parametrize(
    ("flags", "vision", "mmproj"),
    [((), True, "auto"), (("--no-vision",), False, "auto"), (("--mmproj", "none"), True, "none")],
)
def test_the_vision_tower_is_chosen_as_for_a_server(
    flags: tuple[str, ...], vision: bool, mmproj: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[bool, str]] = []

    def compile_ahead(spec: WorkerSpec, progress: Progress) -> Iterator[Built]:
        compiled.append((spec.vision, spec.mmproj))
        return iter(())

    monkeypatch.setattr(compile_module, "compile_ahead", compile_ahead)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["compile", "--backend", "iree", "--cache-dir", str(tmp_path), *flags])
    assert result.exit_code == 0, result.output
    assert compiled == [(vision, mmproj)]


def test_another_cpu_is_compiled_for_and_not_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", frozenset({"avx2"})))
    settings = Settings(backend="iree", cpu="neon", cache_dir=str(tmp_path))
    with pytest.raises(CommandFailed, match="cpu: 'neon' is for aarch64, and this machine's CPU is x86_64"):
        check_model(worker_spec(settings, ChosenModel.choose(settings)))
    monkeypatch.setattr(compile_module, "compile_ahead", lambda spec, progress: iter(()))
    compile_model(settings, as_json=False)
    assert "0 modules" in capsys.readouterr().out


def test_a_backend_without_graphs_is_a_command_error() -> None:
    with pytest.raises(CommandFailed, match="the scripted backend compiles nothing ahead of time"):
        compile_model(Settings(backend="scripted"), as_json=False)
