"""Trials of mutants of a small repository, in a copy of it."""

from pathlib import Path

import pytest

from bench.mutation_test import trial
from bench.mutation_test.checkout import CheckoutCopy, CopyStopped
from bench.mutation_test.mutant import Mutant
from bench.mutation_test.report import noticed_share, survivors, table
from bench.mutation_test.search import find_mutants
from bench.mutation_test.trial import MutantTrial, Outcome, SuiteFails, TimeLimits, try_mutant

MODULE = b"""
def least(values):
    found = None
    while values:
        value = values.pop()
        if found is None or value <= found:
            found = value
    return found
"""
TESTS = """
from {package}.least import least

def test_least():
    assert least([3, 1, 2]) == 1
"""
WITHOUT_PLUGINS = "-p no:schemathesis -p no:anyio -p no:pytest_cov -p no:timeout"
"""Their imports are half of the time of a run."""
STAGES = (("tests/test_nothing.py",), ("tests",))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose package no other one can be taken for."""
    root = tmp_path / "repository"
    for name, text in {
        "least_of_all/__init__.py": "",
        "least_of_all/least.py": MODULE.decode(),
        "tests/test_least.py": TESTS.format(package="least_of_all"),
        "tests/test_nothing.py": "",
        "pyproject.toml": f"[tool.pytest.ini_options]\naddopts = '{WITHOUT_PLUGINS}'\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> CheckoutCopy:
    return CheckoutCopy(repository, tmp_path / "copy")


def mutant(operator: str) -> Mutant:
    return next(each for each in find_mutants("least_of_all/least.py", MODULE) if each.operator == operator)


def equivalent() -> Mutant:
    """A mutant that takes the first one of equal values for the least, instead of the last one."""
    start = MODULE.index(b"<=")
    return Mutant("least_of_all/least.py", start, start + 2, "<", "comparison", "least")


def test_a_noticed_mutant_names_the_test_and_an_equivalent_one_survives(
    repository: Path, copy: CheckoutCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LIMIT_S", 10.0)
    limits = TimeLimits()
    noticed = try_mutant(mutant("None returned"), STAGES, copy, limits)
    assert (noticed.outcome, noticed.reason) == (Outcome.NOTICED, "tests/test_least.py::test_least")
    survived = try_mutant(equivalent(), STAGES, copy, limits)
    assert survived.outcome is Outcome.SURVIVED
    assert (repository / "least_of_all" / "least.py").read_bytes() == MODULE
    text = survivors([noticed, survived], {"least_of_all/least.py": MODULE})
    assert text.startswith("survived (comparison):\n")
    assert "+        if found is None or value < found:" in text
    assert "None" not in text.splitlines()[-1]


def test_a_test_that_hangs_has_noticed_the_mutant(copy: CheckoutCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LIMIT_S", 1.5)
    monkeypatch.setattr(trial, "LIMIT_TIMES", 1.0)
    start = MODULE.index(b"values.pop()")
    endless = Mutant("least_of_all/least.py", start, start + len("values.pop()"), "values[0]", "endless", "least")
    assert try_mutant(endless, STAGES, copy, TimeLimits()).outcome is Outcome.TIMED_OUT


def test_tests_that_fail_without_a_mutant_tell_nothing(repository: Path, tmp_path: Path) -> None:
    (repository / "tests" / "test_least.py").write_text("def test_least():\n    assert False\n")
    copy = CheckoutCopy(repository, tmp_path / "copy")
    with pytest.raises(SuiteFails, match="tests fail without a mutant"):
        try_mutant(mutant("None returned"), STAGES, copy, TimeLimits())


def test_a_test_that_fails_once_without_a_mutant_is_left_out_of_the_time_of_its_suite(
    repository: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    text = f"""
from pathlib import Path

def test_once():
    assert Path({str(once)!r}).exists() or Path({str(once)!r}).touch()
"""
    (repository / "tests" / "test_nothing.py").write_text(text)
    copy = CheckoutCopy(repository, tmp_path / "copy")
    assert try_mutant(mutant("None returned"), STAGES, copy, TimeLimits()).outcome is Outcome.NOTICED
    assert once.exists()


def test_a_test_that_fails_only_once_has_not_noticed_the_mutant(repository: Path, tmp_path: Path) -> None:
    """As a test over sockets may on a busy machine."""
    once = tmp_path / "once"
    text = f"""
from pathlib import Path
from least_of_all import least

def test_once():
    assert "<=" in Path(least.__file__).read_text() or Path({str(once)!r}).exists() or Path({str(once)!r}).touch()
"""
    (repository / "tests" / "test_nothing.py").write_text(text)
    copy = CheckoutCopy(repository, tmp_path / "copy")
    assert try_mutant(equivalent(), STAGES, copy, TimeLimits()).outcome is Outcome.SURVIVED
    assert once.exists()


def test_the_share_is_of_mutants_that_are_not_equivalent() -> None:
    one, other = mutant("None returned"), mutant("comparison")
    trials = [
        *[MutantTrial(one, Outcome.NOTICED)] * 5,
        MutantTrial(one, Outcome.TIMED_OUT),
        *[MutantTrial(one, Outcome.SURVIVED)] * 2,
        *[MutantTrial(other, Outcome.EQUIVALENT, "either value will do")] * 2,
    ]
    assert noticed_share(trials) == 75.0
    assert table(trials).endswith("|      10 |       5 |         1 |          2 |        2 |")
    assert "equivalent, either value will do:" in survivors(trials, {"least_of_all/least.py": MODULE})
    assert noticed_share([]) == 100.0


def test_a_copy_that_is_stopped_shows_nothing(copy: CheckoutCopy) -> None:
    copy.stop()
    with pytest.raises(CopyStopped):
        copy.test(["tests"], 60.0)


def test_packages_that_are_named_like_the_output_of_tools_are_copied(repository: Path, tmp_path: Path) -> None:
    for name in ("build/output.txt", "least_of_all/build/__init__.py"):
        (repository / name).parent.mkdir()
        (repository / name).write_text("")
    CheckoutCopy(repository, tmp_path / "copy")
    tree = tmp_path / "copy" / "tree"
    assert (tree / "least_of_all" / "build" / "__init__.py").is_file()
    assert not (tree / "build").exists()
