"""Draft models that cannot draft for their model are refused, and their memory is planned with it."""

from pathlib import Path
from typing import Any

import pytest

from models import builtin_path, draft_path
from tests.checkpoints import make_checkpoint
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import ModelConfig
from workers.errors import LoadRefused
from workers.host import memory
from workers.host.memory import MemoryRefused
from workers.process import loading
from workers.process.backends import options_of
from workers.process.draft_loading import drafter_of, load_draft, plan_draft
from workers.process.loading import load
from workers.process.spec import WorkerSpec
from workers.process.startup.context_choice import row_bytes
from workers.process.startup.describe import describe
from workers.process.startup.footprint import Footprint
from workers.scripted.runner import ScriptedRunner


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and one that may draft for it."""
    folder = tmp_path_factory.mktemp("models")
    return make_checkpoint(folder / "model"), make_checkpoint(folder / "draft", layers=1, kv_heads=1, max_positions=48)


def spec(paths: tuple[Path, Path], **fields: Any) -> WorkerSpec:
    own: dict[str, Any] = {"backend": "iree", "model_path": str(paths[0]), "draft_model": str(paths[1])}
    return scripted(**own | {"speculate": "auto", "context": 64, "max_batch_size": 4} | fields)


def test_a_smaller_model_with_the_same_tokenizer_is_taken(paths: tuple[Path, Path]) -> None:
    with_draft = describe(spec(paths))
    assert with_draft == describe(spec(paths, draft_model="")), "it does not determine the tokens"


def test_others_are_refused(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model, draft = paths
    other = make_checkpoint(tmp_path / "other", layers=1, vocab=600)
    hybrid = make_checkpoint(tmp_path / "hybrid", "lfm2")
    for fields, reason in (
        ({"speculate": "off"}, "with speculate off, .*: set --speculate auto"),
        ({"draft_model": str(other)}, f"{other} has another tokenizer than {model}"),
        ({"draft_model": str(hybrid)}, f"{hybrid} has a recurrent state, .*: give one without"),
        ({"draft_model": str(model)}, f"parameters, and {model} has .*: give a smaller model"),
        ({"model_path": str(draft), "draft_model": str(model)}, "give a smaller model"),
        ({"device": "cuda"}, "on cuda a row of several in a step may have other bits"),
        ({"backend": "mlx", "device": "gpu"}, "on gpu a row of several in a step may have other bits"),
        ({"max_batch_size": 1}, "set --max-batch-size to 2 or more"),
        ({"draft_model": str(tmp_path)}, f"{tmp_path}/config.json: there is no such file"),
    ):
        with pytest.raises(LoadRefused, match=f"^draft_model: .*{reason}"):
            describe(spec(paths, **fields))


def test_a_worker_refuses_a_draft_model_before_it_loads_any(paths: tuple[Path, Path]) -> None:
    for fields, reason in (
        ({"max_batch_size": 1}, "set --max-batch-size to 2 or more"),
        ({"device": "cuda"}, "on cuda a row of several"),
        ({"draft_model": str(paths[0])}, "give a smaller model"),
    ):
        with pytest.raises(LoadRefused, match=f"^draft_model: .*{reason}"):
            plan_draft(spec(paths, **fields))


def test_a_draft_model_is_not_loaded_beside_a_runner_that_cannot_verify(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_draft", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(LoadRefused, match=r"^draft_model: a step has one row for each sequence"):
        load(scripted(draft_model=str(paths[1])), lambda *_: None)


def test_vocabularies_without_a_tokenizer_must_have_the_same_size(paths: tuple[Path, Path], tmp_path: Path) -> None:
    bare = [
        make_checkpoint(tmp_path / str(vocab), layers=layers, vocab=vocab) for vocab, layers in ((512, 2), (480, 1))
    ]
    for path in bare:
        (path / "tokenizer.json").unlink()
    with pytest.raises(LoadRefused, match=r"^draft_model: .* has a vocabulary of 480 tokens, .* one of 512"):
        describe(spec(paths, model_path=str(bare[0]), draft_model=str(bare[1])))


def test_its_memory_is_part_of_the_plan(paths: tuple[Path, Path]) -> None:
    both, alone = Footprint.of(spec(paths)), Footprint.of(spec(paths, draft_model=""))
    own = Footprint.of(spec(paths, model_path=str(paths[1]), draft_model="", context=48))
    assert both.weights == alone.weights + own.weights
    assert both.row_bytes == alone.row_bytes + own.row_bytes
    assert (both.rows, both.least, both.most) == (alone.rows, alone.least, alone.most)


def test_it_has_no_graphs_for_rows_of_embeddings(paths: tuple[Path, Path]) -> None:
    planned = plan_draft(spec(paths, embeddings=True))
    assert planned is not None
    assert not planned.embeddings


@pytest.mark.parametrize("rows", [64, 100])
def test_kv_bytes_are_for_both_models(paths: tuple[Path, Path], rows: int) -> None:
    given = spec(paths, kv_bytes=rows * Footprint.of(spec(paths)).row_bytes)
    config, small = (ModelConfig.from_dir(path) for path in paths)
    planned = plan_draft(given)
    assert planned is not None
    assert (planned.model_path, planned.draft_model, planned.context) == (str(paths[1]), "", 48)
    assert planned.kv_bytes == rows * row_bytes(planned, "iree", small)
    assert options_of(given, "iree", config).kv_bytes == rows * row_bytes(given, "iree", config)


def test_models_that_do_not_fit_together_are_refused_before_either_is_loaded(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    footprint = Footprint.of(spec(paths))
    needed = footprint.weights + 64 * footprint.row_bytes
    monkeypatch.setattr("workers.process.startup.draft_plan.free_bytes", lambda: needed // 2)
    monkeypatch.setattr(memory, "free_bytes", lambda: needed // 2)
    with pytest.raises(MemoryRefused, match="the model needs"):
        plan_draft(spec(paths))
    assert plan_draft(spec(paths, draft_model="")) is None


def test_a_worker_drafts_with_the_sibling_of_the_built_in_model() -> None:
    given = WorkerSpec(
        "w0",
        "tiny",
        str(builtin_path()),
        backend="iree",
        speculate="auto",
        draft_model=str(draft_path()),
        max_batch_size=2,
        context=128,
    )
    loaded = load(given, lambda *_: None)
    try:
        footprint = Footprint.of(given)
        estimated = footprint.weights + loaded.engine.kv_capacity * footprint.row_bytes
        assert loaded.engine.kv_capacity == 2 * 128
        assert loaded.memory_bytes == pytest.approx(estimated, rel=0.25)
    finally:
        if loaded.grammars is not None:
            loaded.grammars.close()
        loaded.engine.close()


def test_what_is_wrong_with_it_names_the_setting(paths: tuple[Path, Path]) -> None:
    with pytest.raises(LoadRefused, match=r"^draft_model: .*config\.json"):
        load_draft(spec(paths, model_path="/nonexistent", draft_model=""), lambda *_: None)
    with pytest.raises(LoadRefused, match=r"^draft_model: on none a step takes one row a slot"):
        drafter_of(ScriptedRunner())
