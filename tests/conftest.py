"""Fixtures and settings for all tests."""

import atexit
import fcntl
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.further_cases import FURTHER_CASES
from workers.host.topology import usable_cores
from workers.prefix_store import directory as prefix_directory

# The duration of an example depends on the load of the machine, not on the code.
settings.register_profile("baton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("baton")


MOST_PROCESSES = 4
"""Each holds jax, mlx and torch: a gigabyte, and as much again in the workers and compilers that it starts."""


EXHAUSTIVE = "EXHAUSTIVE_TESTS"
"""The environment variable with which the whole suite includes the tests with the marker `exhaustive`."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of processes of `-n auto`.

    The whole suite gets one process more than there are cores, as each of its tests waits for one core or for time to
    pass. A named file, folder or test gets none: it starts at once and can be debugged.
    """
    if not _runs_whole_suite(config):
        return 0
    return min(usable_cores() + 1, MOST_PROCESSES)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without garbage collection, first in one process and then in the others.

    What is imported and collected are millions of objects that live until the end: no collection of garbage looks at
    them. The first process compiles the modules, the others find them compiled.
    """
    gc.disable()
    try:
        with _after_one_process(session.config):
            result = yield
        gc.freeze()
        atexit.register(gc.unfreeze)  # nanobind would report the types of modules as leaks
        return result
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the whole suite that it is one: it is given all its tests by name."""
    node.workerinput["whole_suite"] = _runs_whole_suite(node.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests with the marker `exhaustive`, and further cases, out of the whole suite unless the environment wants
    all."""
    unknown = _mark_further_cases(items)
    workerinput: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    whole = _runs_whole_suite(config) if workerinput is None else workerinput["whole_suite"]
    if whole and unknown:
        raise pytest.UsageError(f"tests/further_cases.py names tests that there are not: {sorted(unknown)}")
    if not whole or os.environ.get(EXHAUSTIVE) == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


def _mark_further_cases(items: list[pytest.Item]) -> set[str]:
    """Mark `FURTHER_CASES` as exhaustive, and return those of them that no item is."""
    left = {f"tests/{file}::{name}" for file, names in FURTHER_CASES.items() for name in names}
    named = frozenset(left)
    for item in items:
        if found := {item.nodeid, item.nodeid.partition("[")[0]} & named:
            item.add_marker("exhaustive")
            left -= found
    return left


def _runs_whole_suite(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


@contextmanager
def _after_one_process(config: pytest.Config) -> Iterator[None]:
    cache = getattr(config, "cache", None)
    if not hasattr(config, "workerinput") or cache is None or sys.dont_write_bytecode:
        yield
        return
    with open(cache.mkdir("collection") / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Folder of compiled graphs, shared by all tests of all processes and kept in pytest's cache between runs.

    `pytest --cache-clear` compiles everything again.
    """
    folder = tmp_path_factory.mktemp("compiled")
    if (cache := getattr(pytestconfig, "cache", None)) is not None:
        (folder / "graphs").symlink_to(cache.mkdir("graphs"))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _stores_on_full_disks() -> Iterator[None]:
    """Let the stores of this process write to a file system that is nearly full, where those of servers end."""
    with mock.patch.object(prefix_directory, "FREE_SHARE", 0.0):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name a reason for failures that lies outside the code."""
    folder = tempfile.gettempdir()
    usage, share = shutil.disk_usage(folder), prefix_directory.FREE_SHARE
    if terminalreporter.stats.get("failed") and usage.free < share * usage.total:
        terminalreporter.write_line(
            f"less than {share:.0%} of the file system of {folder} is free: prefix stores of worker processes write "
            "nothing, and their tests fail. Make room, or set TMPDIR to a folder elsewhere",
            red=True,
        )


@pytest.fixture(autouse=True, scope="session")
def _own_signals() -> Iterator[None]:
    """Restore default signals. Under nohup SIGHUP is ignored, and in the background of a script SIGINT, also in child
    processes."""
    wanted: dict[int, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Restore the logging configuration, which is global, so that one test does not silence the next."""
    configuration = structlog.get_config()
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    structlog.configure(**configuration)
    root.setLevel(level)
    root.handlers[:] = handlers
