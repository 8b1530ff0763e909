"""Choosing and loading a backend, without importing any."""

import importlib.util
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec import structs
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.errors import LoadRefused
from workers.faults.plan import Fault, LoadFault, PlannedFault
from workers.load_options import LoadOptions
from workers.process.backends import (
    BackendMissing,
    cache_dir,
    choose_backend,
    load_runner,
    open_checkpoint,
    options_of,
    served_config,
)
from workers.process.spec import Backend, ScriptedSpec, WorkerSpec
from workers.process.startup.footprint import Footprint
from workers.scripted.runner import ScriptedRunner

Install = Callable[[set[str]], None]


def spec(backend: Backend = "auto", model_path: str = "nowhere", **fields: Any) -> WorkerSpec:
    return WorkerSpec(name="w0", model_name="m", model_path=model_path, backend=backend, **fields)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that only these packages are installed."""

    def pretend(packages: set[str]) -> None:
        def find_spec(name: str) -> object | None:
            if name.partition(".")[0] not in packages:
                if "." in name:
                    raise ModuleNotFoundError(name)
                return None
            return object()

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

    return pretend


def on_apple(monkeypatch: pytest.MonkeyPatch, *, apple: bool) -> None:
    monkeypatch.setattr(sys, "platform", "darwin" if apple else "linux")
    monkeypatch.setattr(platform, "machine", lambda: "arm64" if apple else "x86_64")


@pytest.mark.parametrize(
    ("apple", "packages", "chosen"),
    [
        (True, {"mlx", "mlx_lm", "iree", "jax"}, "mlx"),
        (False, {"mlx", "mlx_lm", "iree", "jax"}, "iree"),
        (True, {"iree", "jax"}, "iree"),
        (False, {"mlx", "mlx_lm"}, "mlx"),
        (False, {"mlx", "mlx_lm", "iree"}, "mlx"),
    ],
)
def test_auto_chooses_an_installed_backend_for_the_machine(
    monkeypatch: pytest.MonkeyPatch, install: Install, apple: bool, packages: set[str], chosen: str
) -> None:
    on_apple(monkeypatch, apple=apple)
    install(packages)
    assert choose_backend(spec()) == chosen


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("auto", r"no backend is installed: pip install 'baton-serve\[iree\]' or 'baton-serve\[mlx\]'"),
        ("iree", r"iree backend needs iree.runtime and iree.compiler and jax: pip install 'baton-serve\[iree\]'"),
        ("mlx", r"mlx backend needs mlx.core and mlx_lm: pip install 'baton-serve\[mlx\]'"),
    ],
)
def test_a_missing_backend_names_what_to_install(install: Install, backend: Backend, words: str) -> None:
    install(set())
    with pytest.raises(BackendMissing, match=words):
        choose_backend(spec(backend))
    with pytest.raises(BackendMissing, match=words):
        load_runner(spec(backend), lambda phase, done, total: None)


@pytest.mark.parametrize("backend", ["iree", "mlx"])
def test_a_backend_that_cannot_be_imported_names_what_to_install(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: Backend
) -> None:
    """As MLX without the package of its library: a later import would fail in the same way."""
    importlib.import_module(f"workers.{backend}")  # which looks for mlx-lm, while it can be found
    install({"mlx", "mlx_lm", "iree", "jax"})
    monkeypatch.setitem(sys.modules, f"workers.{backend}.runner", None)
    path = make_checkpoint(tmp_path)
    with pytest.raises(
        BackendMissing, match=rf"{backend} backend cannot be imported: .*pip install 'baton-serve\[{backend}"
    ):
        load_runner(spec(backend, model_path=str(path)), lambda phase, done, total: None)


def test_all_settings_of_a_load_reach_the_backend(tmp_path: Path) -> None:
    given = spec(
        device="d", dtype="float16", quantize="int8", kv_dtype="int8", max_batch_size=3, context=77,
        cache_dir=str(tmp_path), threads=2, threads_bind="0-1", mmap=False, kv_bytes=5, workers=4, place=3,
        max_lora_rank=7,
    )  # fmt: skip
    assert options_of(given, "iree", ModelConfig.from_dir(make_checkpoint(tmp_path))) == LoadOptions(
        device="d", dtype="float16", quantize="int8", kv_dtype="int8", slots=3, context=77, cache_dir=tmp_path,
        threads=2, threads_bind="0-1", mmap=False, kv_bytes=5, workers=4, place=3,
        max_lora_rank=7,
    )  # fmt: skip


def test_the_scripted_backend_needs_no_package_and_no_model(install: Install) -> None:
    install(set())
    progress: list[tuple[str, int, int]] = []
    scripted = ScriptedSpec(load_seconds=1e-6)
    runner = load_runner(
        spec("scripted", max_batch_size=3, context=77, scripted=scripted), lambda *report: progress.append(report)
    )
    assert isinstance(runner, ScriptedRunner)
    assert (runner.capabilities.slots, runner.capabilities.context) == (3, 77)
    assert progress[0] == ("load", 0, 20)
    assert progress[-1] == ("load", 20, 20)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("fail_load", PlannedFault),
        ("refuse_load", LoadRefused),
        ("no_memory", MemoryError),
        ("disk_full", OSError),
    ],
)
def test_a_planned_load_failure_closes_the_loaded_runner(
    kind: LoadFault, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(ScriptedRunner, "close", lambda self: closed.append(self.capabilities.slots))
    progress: list[tuple[str, int, int]] = []
    with pytest.raises(error):
        load_runner(spec("scripted", max_batch_size=3, faults=(Fault(kind),)), lambda *said: progress.append(said))
    assert (closed, bool(progress)) == ([3], True)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir(spec()) == Path("/home/ann/.cache/baton")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir(spec()) == Path("/home/ann/.cache/baton")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_dir(spec()) == Path("/var/cache/baton")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir(spec()) == Path("/home/ann/Library/Caches/baton")
    assert cache_dir(spec(cache_dir="~/graphs")) == Path("/home/ann/graphs")


def test_the_head_is_served_where_it_drafts(tmp_path: Path) -> None:
    path = str(make_checkpoint(tmp_path, "mimo"))
    with structlog.testing.capture_logs() as logs:
        assert open_checkpoint(spec("mlx", path, device="cpu", speculate="auto"))[1].mtp
        assert not open_checkpoint(spec("mlx", path, device="cpu", speculate="off"))[1].mtp
        assert not open_checkpoint(spec("mlx", path, device="cpu", speculate="auto", draft_model=path))[1].mtp
    assert not logs


@pytest.mark.parametrize(
    ("backend", "fields", "served"),
    [
        ("iree", {"max_batch_size": 2}, True),
        ("iree", {"max_batch_size": 1}, False),
        ("iree", {"device": "local-sync"}, True),
        ("iree", {"device": "cuda"}, False),
        ("iree", {"device": "vulkan://0"}, False),
        ("mlx", {"device": "cpu", "max_batch_size": 1}, True),
        ("mlx", {"device": "gpu"}, False),
    ],
    ids=str,
)
def test_the_head_is_left_out_where_drafts_cannot_be_verified(
    tmp_path: Path, backend: Backend, fields: dict[str, Any], served: bool
) -> None:
    path = str(make_checkpoint(tmp_path, "mimo"))
    assert open_checkpoint(spec(backend, path, speculate="auto", **fields))[1].mtp == served


def test_the_head_of_the_default_device_of_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS that is the GPU."""
    path = str(make_checkpoint(tmp_path, "mimo"))
    for platform_name, served in (("linux", True), ("darwin", False)):
        monkeypatch.setattr(sys, "platform", platform_name)
        assert served_config(spec("mlx", path, speculate="auto")).mtp == served


def test_a_head_whose_tensors_are_missing_is_left_out(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "mimo")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.mtp_layers.0.final_layernorm.weight"]
    write_safetensors(path / "model.safetensors", tensors)
    with structlog.testing.capture_logs() as logs:
        _, config = open_checkpoint(spec("mlx", str(path), device="cpu", speculate="auto"))
    assert not config.mtp
    assert [(log["event"], log["log_level"]) for log in logs] == [("mtp_head_missing", "warning")]
    assert served_config(spec("mlx", str(path), device="cpu", speculate="auto")) == config


@pytest.mark.parametrize(("stated", "there"), [(1, True), (0, True), (1, False)])
def test_a_head_of_a_hybrid_model_is_known_by_its_tensors(tmp_path: Path, stated: int, there: bool) -> None:
    """Whatever config.json states; and it is served where rejected drafts can be taken back from the state."""
    path = make_checkpoint(tmp_path, "qwen3_5_text", fields={"mtp_num_hidden_layers": 1})
    config = path / "config.json"
    config.write_text(config.read_text().replace('"mtp_num_hidden_layers": 1', f'"mtp_num_hidden_layers": {stated}'))
    if not there:
        tensors = load_file(path / "model.safetensors")
        del tensors["mtp.fc.weight"]
        write_safetensors(path / "model.safetensors", tensors)
    for backend, slots, served in (("iree", 8, there), ("iree", 2, there), ("mlx", 8, False)):
        given = spec(backend, str(path), device="" if backend == "iree" else "cpu", max_batch_size=slots)
        with structlog.testing.capture_logs() as logs:
            assert open_checkpoint(structs.replace(given, speculate="auto"))[1].mtp == served
            assert not open_checkpoint(structs.replace(given, speculate="off"))[1].mtp
        assert logs == []


def test_the_cache_of_the_head_is_part_of_the_memory(tmp_path: Path) -> None:
    path = str(make_checkpoint(tmp_path, "mimo", layers=2))
    specs = (spec("mlx", path, device="cpu", context=64, speculate=how) for how in ("auto", "off"))
    with_head, without = map(Footprint.of, specs)
    assert 2 * with_head.row_bytes == 3 * without.row_bytes
