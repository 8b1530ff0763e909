from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.measurement.rounds import Series
from bench.measurement.standings import (
    OURS,
    SECONDS,
    Standing,
    added,
    machine_fields,
    read_standings,
    table,
    write_standings,
)

MACHINE = machine_fields("Some CPU", 2)


def line(
    what: str = "decode", count: int = 1, precision: str = "bf16", cpu: str = "host", **series: Series
) -> Standing:
    return Standing("0.5b", precision, cpu, what, count, {OURS: Series([30.0, 10.0]), **series})


def test_ratios_are_medians_of_rounds() -> None:
    found = line(peer=Series([10.0, 10.0]))
    assert found.ratio("peer") == 2.0
    assert "| 0.5b bf16, decode 1 |  20.0 | 10.0 (2.00x) |" in table([found])


def test_less_is_better_for_seconds() -> None:
    found = line(what=f"cold, {SECONDS}", peer=Series([30.0, 40.0]))
    assert found.ratio("peer") == 2.5
    assert "| 20.00 | 35.00 (2.50x) |" in table([found])


def test_what_was_not_measured_has_its_reason_once() -> None:
    lines = [line(count=count, one=Series(refused="no bf16"), two=Series(refused="none")) for count in (1, 8)]
    text = table(lines)
    assert text.count("- (a) |") == text.count("- (b) |") == 2
    assert text.splitlines()[-2:] == ["- (a) not measured: one: no bf16", "- (b) not measured: two: none"]
    assert lines[0].ratio("one") is None


def test_a_subject_of_another_run_is_no_figure() -> None:
    rows = table([line(peer=Series([1.0, 1.0])), line(count=8)]).splitlines()
    assert rows[-1].split("|")[3].strip() == "not measured"


def test_lines_are_replaced_and_sorted() -> None:
    old = [line(count=8), line(count=1, precision="int4"), line(count=1, cpu="avx2")]
    new = line(count=8, peer=Series([1.0, 1.0]))
    found = added(old, [new, line(count=1)])
    keys = [("bf16", "host", 1), ("bf16", "host", 8), ("int4", "host", 1), ("bf16", "avx2", 1)]
    assert [(one.precision, one.cpu, one.count) for one in found] == keys
    assert found[1].ratio("peer") == 20.0


def test_each_peer_keeps_its_ratio_to_baton_in_its_own_run() -> None:
    first, second = line(one=Series([10.0, 10.0])), line(two=Series([5.0, 5.0]))
    second.series[OURS].values[:] = [50.0, 50.0]
    (found,) = added([first], [second])
    assert (found.ratio("one"), found.ratio("two")) == (2.0, 10.0)
    assert "|  20.0 | 10.0 (2.00x) | 5.0 (10.00x) |" in table([found])
    second.series[OURS].others[:] = [0.0, 0.0]
    first.series[OURS].others[:] = [0.2, 0.0]
    assert added([first], [second])[0].series[OURS] is second.series[OURS]


def test_written_lines_are_read_again(tmp_path: Path) -> None:
    lines = [line(peer=Series([1.0, 2.0], others=[0.0, 0.5])), line(what="prefill", count=512)]
    write_standings(lines, MACHINE, ["peer: 1.0"], tmp_path)
    assert read_standings(tmp_path, MACHINE) == lines
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("Measured on Some CPU, 2 threads, on ")
    assert text.endswith("\n- peer: 1.0\n")
    if find_spec("matplotlib") is not None:
        assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_figures_of_another_cpu_are_not_mixed(tmp_path: Path) -> None:
    write_standings([line()], MACHINE, [], tmp_path)
    with pytest.raises(ValueError, match="the figures of another CPU: Some CPU"):
        read_standings(tmp_path, MACHINE | {"cpu": "Another"})


def test_there_are_no_earlier_lines_in_a_new_folder(tmp_path: Path) -> None:
    assert read_standings(tmp_path / "none", MACHINE) == []
