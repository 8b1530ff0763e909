"""Free memory, and the error text for a model that does not fit."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workers.host.memory import MemoryRefused, Needed, free_bytes, leaving_bytes, machine_bytes
from workers.precision import Quantize

NEEDED = Needed(weights=3_000_000_000, kv=1_000_000_000, slots=8, context=4096)


def test_an_exact_fit_is_accepted() -> None:
    NEEDED.check(4_000_000_000, "none", quantizable=True)
    NEEDED.check(None, "none", quantizable=True)
    with pytest.raises(MemoryRefused):
        NEEDED.check(3_999_999_999, "none", quantizable=True)


@pytest.mark.parametrize(
    ("free", "quantize", "quantizable", "advice"),
    [
        (3.5e9, "none", True, "lower --context, --max-batch-size or --kv-bytes, or set --quantize int8 or int4"),
        (3.5e9, "int8", True, "lower --context, --max-batch-size or --kv-bytes, or set --quantize int4"),
        (3.5e9, "int4", True, "lower --context, --max-batch-size or --kv-bytes"),
        (2.0e9, "none", True, "set --quantize int8 or int4"),
        (2.0e9, "none", False, "free some, or take a smaller model"),
    ],
)
def test_the_text_names_a_remedy(free: float, quantize: Quantize, quantizable: bool, advice: str) -> None:
    with pytest.raises(MemoryRefused) as caught:
        NEEDED.check(int(free), quantize, quantizable=quantizable)
    assert str(caught.value) == (
        "the model needs 4.00 GB of memory, 3.00 GB of weights and 1.00 GB of KV cache for 8 slots of 4096 tokens, "
        f"and {free / 1e9:.2f} GB are free: {advice}"
    )


def test_the_need_counts_the_cache_at_its_maximum() -> None:
    assert Needed.of(1, 10, 4, 100, 0, None).kv == 4000
    assert Needed.of(1, 10, 4, 100, 3999, 1).kv == 3999
    assert Needed.of(1, 10, 4, 100, 4001, 1).kv == 4000


def test_a_cache_below_one_context_is_refused_before_loading() -> None:
    assert Needed.of(1, 10, 4, 100, 1000, None).kv == 1000
    with pytest.raises(MemoryRefused, match="kv_bytes: 999 bytes hold 99 tokens, fewer than the context of 100, which"):
        Needed.of(1, 10, 4, 100, 999, None)


@pytest.mark.parametrize(
    ("free", "kv"), [(5000, 4000), (4500, 4000), (4490, 3991), (1200, 1030), (1160, 1000), (7, 1000)]
)
def test_the_default_cache_is_the_free_memory_and_at_least_one_context(free: int, kv: int) -> None:
    assert Needed.of(50, 10, 4, 100, 0, free).kv == kv


def test_workers_of_one_machine_share_its_free_memory() -> None:
    parts = [Needed.of(50, 10, 9, 100, 0, 12_000, workers).kv for workers in (1, 2, 4, 9)]
    assert parts == [9000, 5350, 2650, 1150]
    assert sum(Needed.of(50, 10, 9, 100, 0, 12_000, 4).total for _ in range(4)) <= 12_000
    assert Needed.of(50, 10, 9, 100, 4000, 12_000, 4).kv == 4000, "what is said is for each"


def test_recurrent_states_leave_less_for_rows() -> None:
    needed = Needed.of(50, 10, 90, 100, 0, 10_000, states=400)
    assert (needed.kv, needed.total) == (9000 - 450, 9000)
    with pytest.raises(MemoryRefused, match=r"0\.00 GB of recurrent states and "):
        needed.check(8999, "none", quantizable=False)


def system(root: Path, available_kib: int, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text("0::/unit\n")
    folder = root / "sys/fs/cgroup/unit"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return root


def test_the_machine_sets_the_bound(tmp_path: Path) -> None:
    assert free_bytes(system(tmp_path, 1000, memory_max="max\n", memory_current="5\n")) == 1000 * 1024


def test_the_cgroup_sets_the_bound(tmp_path: Path) -> None:
    stat = "anon 50\nactive_file 7\ninactive_file 13\n"
    root = system(tmp_path, 1000, memory_max="1000\n", memory_current="400\n", memory_stat=stat)
    assert free_bytes(root) == 1000 - 400 + 20


def test_an_unknown_system_reports_none(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None


def test_the_memory_of_the_machine_is_bounded_by_cgroups(tmp_path: Path) -> None:
    whole = machine_bytes(tmp_path)
    assert whole > 1 << 20
    assert machine_bytes(system(tmp_path / "a", 1000, memory_max="max\n", memory_current="5\n")) == whole
    assert machine_bytes(system(tmp_path / "b", 1000, memory_max="4096\n", memory_current="5\n")) == 4096


def test_memory_that_leaves_is_for_the_cache_and_not_for_the_weights() -> None:
    needed = Needed(weights=10, kv=30, slots=1, context=3)
    needed.check(10, "none", quantizable=False, leaving=30)
    for free, leaving in ((10, 29), (9, 31)):
        with pytest.raises(MemoryRefused):
            needed.check(free, "none", quantizable=False, leaving=leaving)


def test_the_memory_of_the_workers_of_another_server_leaves_with_it() -> None:
    child = "held = bytearray(b'x') * (64 << 20); print('held', flush=True); input()"
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as successor:
            assert 64 << 20 <= leaving_bytes(process.pid, successor.pid) < 192 << 20
            successor.communicate("\n")
        assert leaving_bytes(process.pid, os.getpid()) == 0, "one that began after its successor is another process"
        (worker,) = psutil.Process(process.pid).children()
        process.communicate("\n")
    assert not worker.is_running()
    assert leaving_bytes(process.pid, os.getpid()) == 0
    assert leaving_bytes(0, os.getpid()) == 0
