"""The compile process: asked, answered, refused and killed. Its graph is the smallest there is."""

import io
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.checkpoints import make_checkpoint
from workers.errors import LoadRefused
from workers.iree.build.compile_client import Builder, Building, Built, build_all
from workers.iree.build.compile_server import CompileStart
from workers.iree.build.compiler import BACKGROUND_SECONDS, COMPILE_SECONDS, CompileError
from workers.iree.build.recipe import Recipe
from workers.iree.device.gpu import COMMON_FLAGS

FLAGS = (*COMMON_FLAGS, "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
COPY = ("copy",)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = make_checkpoint(tmp_path / "model")
    return Recipe(str(path), "float32", False, 2, 32, FLAGS, "", str(tmp_path / "cache"))


def test_compiled_in_a_process_and_found_without_one(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(recipe)
    assert builder.find(COPY) is None
    (built,) = build_all(builder, [COPY], 1)
    assert built.group == COPY
    assert built.file.stat().st_size > 0
    assert built.seconds is not None
    other = Builder(recipe)
    monkeypatch.setattr(other, "process", None)  # it would fail if it were called
    assert list(build_all(other, [COPY], 1)) == [Built(COPY, built.file, None)]


def test_modules_are_compiled_before_somebody_waits_for_them(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, process = Builder(recipe), mock.Mock(results=mock.Mock(return_value=iter(["compiled"])))
    start = mock.Mock(return_value=process)
    monkeypatch.setattr(builder, "find", lambda group: None if group == COPY else Path("found"))
    monkeypatch.setattr(builder, "process", start)
    with Building(builder, [COPY, ("sample",)], 8) as building:
        assert building.groups == (COPY, ("sample",))
        start.assert_called_once_with(parallel=1)
        process.request.assert_called_once_with(COPY)
        assert [*building.found, *building.compiled()] == [Built(("sample",), Path("found"), None), "compiled"]
        process.close.assert_not_called()
    process.close.assert_called_once_with()


def test_a_graph_that_cannot_be_traced_is_an_error_and_the_next_one_is_not(recipe: Recipe) -> None:
    builder = Builder(recipe)
    with builder.process(parallel=1) as process:
        process.request(("decode_none",))
        with pytest.raises(CompileError, match="invalid literal"):
            list(process.results(1))
        process.request(COPY)
        assert [built.group for built in process.results(1)] == [COPY]


def test_another_model_than_was_asked_for_is_refused(recipe: Recipe) -> None:
    builder = Builder(recipe)
    groups = tuple(replace(group, slots=3) for group in builder.plan.cache.groups)
    builder.plan = replace(builder.plan, cache=replace(builder.plan.cache, groups=groups))
    with builder.process(parallel=1) as process:
        process.request(COPY)
        with pytest.raises(CompileError, match=r"config\.json or this program changed"):
            list(process.results(1))


def test_what_a_person_must_mend_stays_a_sentence(recipe: Recipe) -> None:
    builder = Builder(recipe)
    folder = Path(recipe.cache_dir) / "graphs"
    folder.rmdir()
    folder.touch()
    with builder.process(parallel=1) as process:
        process.request(COPY)
        with pytest.raises(LoadRefused, match="cannot keep a compiled graph: File exists"):
            list(process.results(1))


def test_a_process_that_dies_is_an_error(recipe: Recipe) -> None:
    with Builder(recipe).process(parallel=1) as process:
        process.kill()
        process.request(COPY)
        with pytest.raises(CompileError, match="the compile process ended with -9"):
            list(process.results(1))


@pytest.mark.parametrize("background", [False, True])
def test_a_process_in_the_background_has_more_time(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    started = mock.Mock(stdin=io.BytesIO(), stdout=io.BytesIO())
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started)
    process = Builder(recipe).process(parallel=1, background=background)
    assert msgspec.json.decode(started.stdin.getvalue(), type=CompileStart).background is background
    assert process.silence_s > (BACKGROUND_SECONDS if background else COMPILE_SECONDS)
