"""The graph that serves while others are on their way: without a device or a compiler."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from workers.iree.build.compile_client import Building, Built, Group
from workers.iree.build.compiler import CompileError
from workers.iree.graph_registry import TRIES, GraphRegistry

SIZES = (1, 2, 4, 8)


class Process:
    """A compile process that returns a result when the test lets it."""

    def __init__(self, builder: "Builder") -> None:
        self._builder = builder
        self._killed = threading.Event()
        self.asked: Group = ()

    def request(self, group: Group) -> None:
        self.asked = group

    def results(self, count: int) -> Iterator[Built]:
        assert count == 1
        self._builder.order.append(self.asked[0])
        self._builder.asked.release()
        self._builder.may_answer.acquire()
        if self._killed.is_set() or self.asked[0] in self._builder.dying:
            self._builder.dying.discard(self.asked[0])
            raise CompileError("the compile process ended with -9")
        if self.asked[0] in self._builder.broken:
            raise CompileError("iree-compile crashed")
        yield Built(self.asked, Path(self.asked[0]), 1.0)

    def kill(self) -> None:
        self._killed.set()
        self._builder.may_answer.release()

    def close(self) -> None:
        self._builder.closed += 1


class Builder:
    """Compiles what it is asked for, one permission after the other."""

    def __init__(self) -> None:
        self.cached: set[str] = set()
        self.broken: set[str] = set()
        self.dying: set[str] = set()
        """Graphs that kill their compiler once."""
        self.order: list[str] = []
        self.asked, self.may_answer = threading.Semaphore(0), threading.Semaphore(0)
        self.started = self.closed = 0
        self.starting, self.may_start = threading.Event(), threading.Event()
        self.may_start.set()

    def find(self, group: Group) -> Path | None:
        return Path(group[0]) if group[0] in self.cached else None

    def process(self, **_: int) -> Process:
        self.started += 1
        self.starting.set()
        assert self.may_start.wait(timeout=60)
        return Process(self)


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def registry(builder: Builder) -> Iterator[GraphRegistry]:
    builder.cached = {"decode_8"}
    foreign: Any = builder

    def loaded(file: Path) -> Any:
        if file.name == "unloadable":
            raise ValueError("no module")
        return foreign

    registry = GraphRegistry(foreign, loaded, retry_s=0.0)
    registry.open(Building(foreign, [("decode_8",)], 1), [("decode_8",)], lambda phase, done, total: None)
    yield registry
    registry.close()


class Opening:
    """Modules of which some are there, and others are compiled as far as the test lets them."""

    def __init__(self, found: tuple[str, ...], missing: tuple[str, ...]) -> None:
        self.found = tuple(Built((name,), Path(name), None) for name in found)
        self.groups = ((missing[0],), *((name,) for name in found), *((name,) for name in missing[1:]))
        self._left = list(missing)
        self.done = threading.Semaphore(0)
        self.broken = ""
        self.ended: list[str] = []

    def compiled(self) -> Iterator[Built]:
        while self._left:
            assert self.done.acquire(timeout=60)
            name = self._left.pop(0)
            if self.ended or name == self.broken:
                raise CompileError("iree-compile crashed")
            yield Built((name,), Path(name), 1.0)

    def kill(self) -> None:
        self.ended.append("killed")
        self.done.release()

    def close(self) -> None:
        self.ended.append("closed")


@pytest.fixture
def opening() -> Any:
    return Opening(("sample",), ("decode_8", "prefill_512", "head_8"))


@pytest.fixture
def opened(builder: Builder, opening: Any) -> Iterator[GraphRegistry]:
    """A registry that is open with the first of its modules, and the one that was found."""
    foreign: Any = builder
    registry = GraphRegistry(foreign, lambda file: foreign, retry_s=0.0)
    opening.done.release()
    reported: list[tuple[str, int, int]] = []
    registry.open(opening, [("decode_8",)], lambda *progress: reported.append(progress))
    assert reported == [("compile graphs", done, 1) for done in (0, 0, 1)]
    assert registry.ready == {"sample", "decode_8"}
    assert registry.pending == 2
    yield registry
    registry.close()


def test_what_open_did_not_wait_for_follows_before_the_others(
    opened: GraphRegistry, opening: Opening, builder: Builder
) -> None:
    builder.may_answer.release()
    opened.fetch([("decode_1",)])
    assert "prefill_512" not in opened
    opening.done.release(2)
    opened.settle()
    assert opened.ready == {"sample", "decode_8", "prefill_512", "head_8", "decode_1"}
    assert "prefill_512" in opened
    assert (builder.order, opening.ended, opened.pending) == (["decode_1"], ["closed"], 0)


def test_what_failed_behind_open_is_compiled_like_others(
    opened: GraphRegistry, opening: Opening, builder: Builder
) -> None:
    opening.broken = "prefill_512"
    opening.done.release()
    builder.may_answer.release(3)
    with capture_logs() as logs:
        opened.fetch([("decode_1",)])
        opened.settle()
    assert builder.order == ["prefill_512", "head_8", "decode_1"]
    assert [(line["event"], line["graphs"], line["text"]) for line in logs] == [
        ("graph_is_tried_again", ["prefill_512", "head_8"], "iree-compile crashed")
    ]
    assert opening.ended == ["closed"]
    assert opened.failed == 0


def test_closing_kills_what_open_did_not_wait_for(opened: GraphRegistry, opening: Opening) -> None:
    with capture_logs() as logs:
        opened.fetch([])
        opened.close()
    assert opening.ended == ["killed", "closed"]
    assert logs == []


def test_closing_without_a_thread_ends_the_compilers(opened: GraphRegistry, opening: Opening) -> None:
    opened.close()
    assert opening.ended == ["killed", "closed"]


def test_the_smallest_that_is_ready_covers(registry: GraphRegistry, builder: Builder) -> None:
    builder.cached |= {"decode_2"}
    assert [registry.covering("decode", SIZES, needed) for needed in (1, 8)] == [8, 8]
    registry.fetch([("decode_2",)])
    registry.settle()
    assert [registry.covering("decode", SIZES, needed) for needed in (1, 2, 3, 8)] == [2, 2, 8, 8]
    assert registry.covering("decode", SIZES, 9) is None
    assert registry.covering("prefill", SIZES, 1) is None
    assert registry.largest("decode", SIZES) == 8
    assert (builder.started, registry.failed, registry.pending) == (0, 0, 0)


def test_a_larger_one_serves_while_a_smaller_one_is_compiled(registry: GraphRegistry, builder: Builder) -> None:
    registry.fetch([("decode_1",)])
    assert builder.asked.acquire(timeout=60)  # the compiler runs
    assert registry.covering("decode", SIZES, 1) == 8
    assert registry.pending == 1
    builder.may_answer.release()
    registry.settle()
    assert registry.covering("decode", SIZES, 1) == 1


def test_what_was_missed_last_comes_next(registry: GraphRegistry, builder: Builder) -> None:
    registry.fetch([("decode_1",), ("decode_2",), ("decode_4",), ("unfiltered_4", "filter_4")])
    assert builder.asked.acquire(timeout=60)
    registry.covering("decode", SIZES, 3)
    registry.covering("filter", (4,), 4)
    builder.may_answer.release(4)
    registry.settle()
    assert builder.order == ["decode_1", "unfiltered_4", "decode_4", "decode_2"]
    assert registry.ready >= {"unfiltered_4", "filter_4"}


def test_what_is_rare_comes_when_it_is_missed_and_once(registry: GraphRegistry, builder: Builder) -> None:
    builder.broken = {"score_8"}
    builder.may_answer.release(TRIES)
    registry.fetch([], rare=[("score_8", "report_8")])
    registry.settle()
    assert registry.pending == 0
    for kind in ("score", "report", "score"):
        assert registry.covering(kind, (8,), 8) is None
        registry.settle()
    assert builder.order == ["score_8"] * TRIES
    assert registry.failed == 1


def test_only_the_smallest_that_would_do_is_asked_for(registry: GraphRegistry, builder: Builder) -> None:
    builder.may_answer.release(9)
    registry.fetch([], rare=[(f"edit_{size}",) for size in SIZES])
    assert registry.covering("edit", SIZES, 3) is None
    registry.settle()
    assert builder.order == ["edit_4"]
    assert registry.covering("edit", SIZES, 3) == 4


def test_what_fails_again_and_again_is_counted_and_covered(registry: GraphRegistry, builder: Builder) -> None:
    builder.broken = {"decode_1"}
    builder.may_answer.release(1 + TRIES)
    with capture_logs() as logs:
        registry.fetch([("decode_1",), ("decode_2",)])
        registry.settle()
    assert {(line["graphs"], line["text"]) for line in logs} == {(("decode_1",), "iree-compile crashed")}
    assert [line["event"] for line in logs] == ["graph_is_tried_again"] * (TRIES - 1) + ["graph_failed"]
    assert (registry.failed, registry.pending) == (1, 0)
    assert registry.covering("decode", SIZES, 1) == 2
    # After all others. A process that brought a failure is not trusted with the next graph.
    assert builder.order == ["decode_1", "decode_2"] + ["decode_1"] * (TRIES - 1)
    assert builder.started == 1 + TRIES


def test_a_graph_whose_compiler_was_killed_comes_later(registry: GraphRegistry, builder: Builder) -> None:
    builder.dying = {"decode_1"}
    builder.may_answer.release(3)
    with capture_logs() as logs:
        registry.fetch([("decode_1",), ("decode_2",)])
        registry.settle()
    (line,) = logs
    assert (line["event"], line["log_level"], line["tried"]) == ("graph_is_tried_again", "warning", 1)
    assert (registry.failed, registry.covering("decode", SIZES, 1)) == (0, 1)


def test_what_waits_for_another_try_is_pending_and_ends_with_the_runner(builder: Builder) -> None:
    foreign: Any = builder
    builder.cached, builder.dying = {"decode_8"}, {"decode_1"}
    registry = GraphRegistry(foreign, lambda file: foreign, retry_s=3600.0)
    with capture_logs() as logs:
        registry.fetch([("decode_1",)])
        builder.may_answer.release()
        with registry._changed:
            assert registry._changed.wait_for(lambda: registry._again, timeout=60)
        assert (registry.pending, registry.failed, len(logs)) == (1, 0, 1)
        registry.close()
    assert builder.started == builder.closed == 1


def test_a_module_that_cannot_be_loaded_is_a_failure_too(registry: GraphRegistry, builder: Builder) -> None:
    builder.cached |= {"unloadable"}
    registry.fetch([("unloadable",)])
    registry.settle()
    assert registry.failed == 1
    assert registry.covering("decode", SIZES, 1) == 8


def test_no_process_stays_when_nothing_is_wanted(registry: GraphRegistry, builder: Builder) -> None:
    builder.may_answer.release(2)
    registry.fetch([("decode_1",)])
    registry.settle()
    registry.fetch([("decode_2",)])
    registry.settle()
    registry.close()
    assert builder.started == builder.closed


def test_close_ends_a_compiler_that_runs(registry: GraphRegistry, builder: Builder) -> None:
    with capture_logs() as logs:
        registry.fetch([("decode_1",), ("decode_2",)])
        assert builder.asked.acquire(timeout=60)
        registry.close()
    assert builder.order == ["decode_1"]
    assert logs == []  # an end that was asked for is no failure
    assert registry.ready == frozenset()
    registry.settle()  # nothing is waited for after


def test_an_engine_does_not_wait_for_a_compile_process_to_start(registry: GraphRegistry, builder: Builder) -> None:
    builder.may_start.clear()
    registry.fetch([("decode_1",)], rare=[("score_8",)])
    assert builder.starting.wait(timeout=60)
    assert registry.pending == 1
    assert registry.covering("score", (8,), 8) is None  # which asks for it
    assert registry.pending == 2
    closing = threading.Thread(target=registry.close)
    closing.start()
    builder.may_start.set()
    closing.join(timeout=60)
    assert (registry.ready, builder.started, builder.closed) == (frozenset(), 1, 1)


def test_an_engine_does_not_wait_for_the_one_that_compiles(registry: GraphRegistry) -> None:
    """Even while the other thread holds the lock, the engine's gets its graph."""
    with registry._changed:
        found: list[int | None] = []
        engine = threading.Thread(target=lambda: found.append(registry.covering("decode", SIZES, 1)))
        engine.start()
        engine.join(timeout=60)
        assert found == [8]
