"""The whole suite leaves out tests with the marker `exhaustive`, unless `BATON_EXHAUSTIVE=1`; named ones run."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import EXHAUSTIVE, pytest_collection_modifyitems


def selected(config: Any) -> tuple[list[str], list[str]]:
    """The names of the tests that run, and of those that are left out."""
    left_out: list[Any] = []
    config.hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items: list[Any] = [
        SimpleNamespace(name=name, get_closest_marker=lambda marker, marks=marks: marker in marks)
        for name, marks in (("plain", ()), ("slow", ("slow",)), ("further", ("slow", "exhaustive")))
    ]
    pytest_collection_modifyitems(config, items)
    return [each.name for each in items], [each.name for each in left_out]


@pytest.mark.parametrize("source", ["this process", "a process of xdist"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wanted", ["1", "0", ""])
def test_further_combinations_are_left_out(
    source: str, whole: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXHAUSTIVE, wanted)
    sources = pytest.Config.ArgsSource
    config = SimpleNamespace(args_source=sources.TESTPATHS if whole else sources.ARGS)
    if source == "a process of xdist":
        config = SimpleNamespace(args_source=sources.ARGS, workerinput={"whole_suite": whole})
    if whole and wanted != "1":
        assert selected(config) == (["plain", "slow"], ["further"])
    else:
        assert selected(config) == (["plain", "slow", "further"], [])
