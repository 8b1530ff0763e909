"""The doctor probes each backend, and reports one that fails in any way."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands import doctor
from cli.config.settings import Settings
from tests.workers.host.machines import two_sockets
from workers.host.cpu_plan import CpuPlan
from workers.host.huge_pages import HugePages
from workers.host.probe import Probe, short
from workers.host.topology import Topology
from workers.iree.device.cpu import Cpu
from workers.process.backends import PACKAGES


def script(folder: Path, text: str) -> str:
    """Create an executable that replaces Python."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_the_report_names_the_machine_and_what_works_here(tmp_path: Path) -> None:
    output = io.StringIO()
    works = doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=200))
    report = output.getvalue()
    assert works
    assert "local-task" in report
    assert str(tmp_path) in report
    topology = Topology.of_host()
    assert f"{topology} of {os.cpu_count()} CPUs" in report
    assert str(CpuPlan.of(topology).workers[0]) in report
    assert str(HugePages.of_host()) in report
    assert "Try: baton serve" in report


def test_graphs_and_weights_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {})
    for name, sizes in {"graphs/aa": (1, 2), "weights": (3,)}.items():
        (tmp_path / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            (tmp_path / name / f"{number}.bin").write_bytes(bytes(size << 20))
    (tmp_path / "weights" / "0.lock").touch()
    output = io.StringIO()
    doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=200))
    cells = [line.split("│") for line in output.getvalue().splitlines() if line.startswith("│")]
    rows = {name.strip(): text.strip() for _, name, text, *_ in cells}
    assert rows["compiled graphs"] == "2 files, 3.0 MiB"
    assert rows["packed weights"] == "1 file, 3.0 MiB"
    assert rows["cache"].startswith(f"{tmp_path}: ")


def test_a_machine_of_two_nodes_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {})
    topology = two_sockets(tmp_path).topology(monkeypatch)
    monkeypatch.setattr(Topology, "of_host", lambda: topology)
    output = io.StringIO()
    doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=300))
    assert "64 compute threads, pinned to CPUs 0-127, memory of NUMA nodes 0-1" in output.getvalue()
    assert "--workers 2" in output.getvalue()


def test_the_features_of_the_cpu_have_the_names_of_its_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    features = frozenset({"neon", "dotprod", "i8mm", "crc"})
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("aarch64", features))
    monkeypatch.setattr(doctor, "PACKAGES", {})
    output = io.StringIO()
    doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=200))
    assert " neon dotprod i8mm " in output.getvalue()


def test_free_memory_is_what_a_load_counts_and_no_path_is_truncated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builtin = tmp_path / ("long" * 20)
    builtin.mkdir()
    monkeypatch.setattr(doctor, "free_bytes", lambda: 3 * 2**30)
    monkeypatch.setattr(doctor, "builtin_path", lambda: builtin)
    monkeypatch.setattr(doctor, "PACKAGES", {})
    output = io.StringIO()
    doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=60))
    report = output.getvalue()
    assert " 3.0 GiB free" in report
    cells = [line.split("│")[2].strip() for line in report.splitlines() if line.startswith("│")]
    assert str(builtin) in "".join(cells)


def test_a_backend_that_crashes_is_a_line_of_the_report(tmp_path: Path) -> None:
    [line] = doctor.probe_backend("iree", script(tmp_path, "echo driver exploded >&2; kill -ABRT $$"))
    assert not line.works
    assert "status -6" in line.detail


def test_a_backend_with_an_invalid_answer_is_a_line_of_the_report(tmp_path: Path) -> None:
    [line] = doctor.probe_backend("iree", script(tmp_path, "echo hello"))
    assert not line.works
    assert "not readable" in line.detail


def test_a_backend_that_never_answers_is_a_line_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.2)
    [line] = doctor.probe_backend("iree", script(tmp_path, "exec sleep 60"))
    assert not line.works
    assert "no answer" in line.detail


def test_a_backend_that_is_not_installed_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "iree", ("no_such_module", "no_such_package.module"))
    assert doctor.probe_backend("iree") == [
        Probe(
            "iree",
            "",
            False,
            "not installed: no_such_module, no_such_package.module",
            "pip install 'baton-serve[iree]'",
        )
    ]


def test_advice_is_printed_with_its_brackets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(PACKAGES, "mlx")
    monkeypatch.setitem(PACKAGES, "iree", ("no_such_module",))
    output = io.StringIO()
    assert not doctor.examine(Settings(cache_dir=str(tmp_path)), Console(file=output, width=200))
    assert "pip install 'baton-serve[iree]'" in output.getvalue()
    assert "Nothing here can serve" in output.getvalue()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {})
    (tmp_path / "file").write_text("")
    output = io.StringIO()
    doctor.examine(Settings(cache_dir=str(tmp_path / "file" / "cache")), Console(file=output, width=200))
    assert "cannot be made" in output.getvalue()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Error creating driver: c/runtime/src/iree/x.c:66: UNAVAILABLE; no library; \nmore", "no library"),
        ("plain", "plain"),
        ("", "RuntimeError"),
    ],
)
def test_the_place_in_native_code_is_removed_from_an_error(text: str, line: str) -> None:
    assert short(RuntimeError(text)) == line
