"""The model that the settings choose, and its name."""

from pathlib import Path

import pytest

from actors.transport.rate_limit import PeerRate
from cli.config import model as chosen
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings
from cli.config.sources import InvalidSettings, load
from models import builtin_path
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import CheckpointError
from workers.hub.download import Download


def test_no_model_is_the_builtin_one() -> None:
    assert ChosenModel.choose(Settings()) == ChosenModel("baton-tiny", builtin_path())


def test_the_name_of_a_directory_is_its_own_or_the_one_that_is_set(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    assert ChosenModel.choose(Settings(model=f"{folder}/")) == ChosenModel("llama", folder)
    assert ChosenModel.choose(Settings(model=str(folder), name="mine")).name == "mine"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("llama-Q4_K_M.gguf", "llama-Q4_K_M"), ("llama-BF16-00002-of-00003.gguf", "llama-BF16")],
    ids=["file", "shard"],
)
def test_the_name_of_a_gguf_file_is_without_its_ending(tmp_path: Path, name: str, expected: str) -> None:
    file = tmp_path / name
    (tmp_path / "blob").touch()
    file.symlink_to(tmp_path / "blob")  # as in the hub's cache
    assert ChosenModel.choose(Settings(model=str(file))) == ChosenModel(expected, file)


def test_the_name_of_the_current_directory_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ChosenModel.choose(Settings(model=".")).name == tmp_path.name


def test_a_hub_id_is_downloaded_and_is_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chosen, "resolve_model", lambda model, *, projector: tmp_path / model)
    assert ChosenModel.choose(Settings(model="org/name")) == ChosenModel("org/name", tmp_path / "org/name")


def test_a_failed_download_is_a_command_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: str, *, projector: bool) -> Path:
        raise CheckpointError(model, "", "could not be fetched")

    monkeypatch.setattr(chosen, "resolve_model", refuse)
    with pytest.raises(CommandFailed, match="could not be fetched"):
        ChosenModel.choose(Settings(model="org/name"))


def test_a_scripted_worker_is_not_faster_than_its_link_accepts() -> None:
    """A fast CPU makes more steps than `PeerRate` allows, and the gateway would drop the worker."""
    spec = worker_spec(Settings(backend="scripted"), ChosenModel("m", Path()))
    assert 0 < spec.scripted.tokens_per_second <= PeerRate().frames_per_s / 2


def test_the_scripted_backend_needs_no_model() -> None:
    assert ChosenModel.choose(Settings(backend="scripted")).name == "scripted"


def test_a_model_is_checked_before_anything_starts(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    settings = Settings(model=str(path), backend="mlx")
    check_model(worker_spec(settings, ChosenModel.choose(settings)))
    for context, problem in ((1 << 20, "max_position_embeddings"), (1, "context: 1 token leaves no room")):
        other = Settings(model=str(path), backend="mlx", context=context)
        with pytest.raises(CommandFailed, match=problem):
            check_model(worker_spec(other, ChosenModel.choose(other)))


def test_a_notation_that_is_not_known_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    settings = Settings(backend="scripted", tool_parser="hermess")
    spec = worker_spec(settings, ChosenModel("tiny", tmp_path))
    with pytest.raises(CommandFailed, match=r"tool_parser: 'hermess' is not one of auto, none, .*hermes"):
        check_model(spec)


def test_a_cache_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    pytest.importorskip("iree.runtime")
    path, file = make_checkpoint(tmp_path / "model"), tmp_path / "file"
    file.write_text("")
    settings = Settings(model=str(path), backend="iree", cache_dir=str(file / "cache"))
    with pytest.raises(CommandFailed, match=r"cannot be created: .*; set --cache-dir"):
        check_model(worker_spec(settings, ChosenModel.choose(settings)))


def test_a_name_that_is_too_long_for_the_wire_is_refused(tmp_path: Path) -> None:
    (tmp_path / ("x" * 128)).mkdir()
    (tmp_path / ("x" * 129)).mkdir()
    assert ChosenModel.choose(Settings(model=str(tmp_path / ("x" * 128)))).name == "x" * 128
    with pytest.raises(CommandFailed, match="--name"):
        ChosenModel.choose(Settings(model=str(tmp_path / ("x" * 129))))


def test_a_draft_model_is_found_like_a_model(tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path / "small", layers=1)
    settings = load({"model": str(make_checkpoint(tmp_path / "model")), "speculate": "auto", "draft_model": str(draft)})
    spec = worker_spec(settings, ChosenModel.choose(settings))
    assert (spec.draft_model, spec.draft_name) == (str(draft), "small")
    check_model(spec)
    with pytest.raises(CommandFailed, match=r"^--draft-model: .*nowhere: there is no such directory"):
        worker_spec(load({"draft_model": str(tmp_path / "nowhere")}), ChosenModel("m", tmp_path))
    off = load({"model": str(tmp_path / "model"), "speculate": "off", "draft_model": str(draft)})
    with pytest.raises(CommandFailed, match=r"^--draft-model: it cannot be loaded with speculate off"):
        check_model(worker_spec(off, ChosenModel.choose(off)))


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_an_error_of_a_worker_names_what_set_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    flags: dict[str, str] = {"model": str(make_checkpoint(tmp_path / "model")), "backend": "mlx"}
    if source == "flag":
        flags["cpu"] = "avx2"
    elif source == "variable":
        monkeypatch.setenv("BATON_CPU", "avx2")
    else:
        (tmp_path / "baton.toml").write_text('cpu = "avx2"')
    settings = load(flags)
    place = {"flag": "--cpu", "variable": "BATON_CPU", "file": "baton.toml: cpu"}[source]
    with pytest.raises(CommandFailed, match=f"^{place}: 'avx2' has no effect on the mlx backend"):
        check_model(worker_spec(settings, ChosenModel.choose(settings)))


def test_a_projector_is_a_file_or_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ChosenModel("m", tmp_path / "model.gguf")
    for name in ("auto", "none"):
        assert worker_spec(Settings(mmproj=name), model).mmproj == name
    (tmp_path / "mmproj-F16.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert worker_spec(Settings(mmproj="mmproj-F16.gguf"), model).mmproj == str(tmp_path / "mmproj-F16.gguf")
    for missing in ("mmproj-F32.gguf", "~/nowhere.gguf", "~nobody-of-that-name/m.gguf", "x"):
        with pytest.raises((CommandFailed, InvalidSettings), match=f"^--mmproj: {missing}: there is no such"):
            worker_spec(load({"mmproj": missing}), model)
    asked = []

    def fetched(download: Download) -> Path:
        asked.append(download)
        return tmp_path / "cached.gguf"

    monkeypatch.setattr("workers.hub.resolve._fetched", fetched)
    assert worker_spec(Settings(mmproj="org/name:F16"), model).mmproj == str(tmp_path / "cached.gguf")
    assert len(asked) == 1


def test_a_projector_is_wanted_of_the_hub_unless_settings_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = []

    def resolve(model: str, *, projector: bool) -> Path:
        wanted.append(projector)
        return tmp_path

    monkeypatch.setattr(chosen, "resolve_model", resolve)
    for options in ({}, {"mmproj": "none"}, {"mmproj": "org/other"}, {"vision": False}):
        ChosenModel.choose(Settings(model="org/name", **options))
    assert wanted == [True, False, False, False]
