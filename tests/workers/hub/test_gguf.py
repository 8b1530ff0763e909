"""Repositories with GGUF files: the one that is named is downloaded, and found again without the hub."""

from pathlib import Path

import pytest

from cli.config.options import complete_hub_model
from protocol.hub_id import HubId
from tests.workers.hub.hub_server import HubServer, hub_error
from workers.checkpoints.gguf.find import choose, choose_projector, models, quantization_of
from workers.hub.cache import HubCache
from workers.hub.download import Download, WithProjector
from workers.hub.errors import HubCause, HubError

REPO = "org/model-GGUF"
SHARDS = ("model-BF16-00001-of-00002.gguf", "model-BF16-00002-of-00002.gguf")
PROJECTOR = "mmproj-model-F16.gguf"
NAMES = ("model-Q4_K_M.gguf", "model-Q4_K_S.gguf", "model-Q8_0.gguf", *SHARDS)


@pytest.fixture
def files(hub: HubServer) -> HubServer:
    """The hub has a repository with several quantizations, a projector of images and importances."""
    others = (PROJECTOR, "model.imatrix.gguf", "README.md")
    hub.repos[REPO] = {name: name.encode() for name in (*NAMES, *others)}
    return hub


def download(
    hub: HubServer, cache: Path, quantization: str = "", repo: str = REPO, projector: WithProjector = "with"
) -> Download:
    return Download(HubId(repo, quantization=quantization), hub.url, cache, projector=projector)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [("", NAMES[:1]), ("q4_k_m", NAMES[:1]), ("Q4_K_S", NAMES[1:2]), ("Q8_0", NAMES[2:3]), ("BF16", SHARDS)],
    ids=["default", "lower-case", "similar", "q8", "shards"],
)
def test_one_quantization_is_downloaded(
    files: HubServer, cache: Path, quantization: str, expected: tuple[str, ...]
) -> None:
    work = download(files, cache, quantization)
    assert work.cached() is None
    plan = work.plan()
    expected = (*expected, PROJECTOR)
    assert plan.files == expected
    assert plan.size == plan.missing == sum(map(len, expected))
    path = work.run(plan)
    assert path.name == expected[0]
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(expected)
    files.failure = hub_error(503)
    assert download(files, cache, quantization).cached() == path


def test_another_quantization_is_not_taken_from_the_cache(files: HubServer, cache: Path) -> None:
    work = download(files, cache, "Q8_0")
    work.run(work.plan())
    assert download(files, cache).cached() is None  # the default is another file
    assert download(files, cache, "Q4_K_S").cached() is None


def test_a_projector_is_left_out_or_downloaded_later_or_alone(files: HubServer, cache: Path) -> None:
    text = download(files, cache, projector="without")
    path = text.run(text.plan())
    assert [file.name for file in path.parent.iterdir()] == [NAMES[0]]
    assert text.cached() == path
    both = download(files, cache)
    assert both.cached() is None
    assert both.plan().missing == len(PROJECTOR)
    assert both.run(both.plan()) == path
    assert both.cached() == path
    alone = download(files, cache, projector="alone")
    assert alone.cached() == path.with_name(PROJECTOR)


def test_one_of_several_projectors_is_downloaded_by_its_precision(files: HubServer, cache: Path) -> None:
    files.repos[REPO] |= {"mmproj-model-F32.gguf": b"32", "mmproj-model-Q8_0.gguf": b"8"}
    work = download(files, cache)
    assert work.plan().files == (NAMES[0], "mmproj-model-Q8_0.gguf")
    named = download(files, cache, "f32", projector="alone")
    assert named.cached() is None
    assert named.run(named.plan()).read_bytes() == b"32"
    with pytest.raises(HubError, match=r"is no projector of images; name the precision .*: mmproj-model-F16\.gguf, "):
        download(files, cache, "BF16", projector="alone").plan()


@pytest.mark.parametrize(
    ("names", "model", "quantization", "expected"),
    [
        (("mmproj-F16.gguf", "m-Q4_K_M.gguf"), "m-Q4_K_M.gguf", "", "mmproj-F16.gguf"),
        (("mmproj.gguf",), "m.gguf", "", "mmproj.gguf"),
        (("m-mmproj-f16.gguf", "m.mmproj-Q8_0.gguf"), "m.gguf", "", None),
        (("mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"), "m-Q4_K_M.gguf", "", "mmproj-BF16.gguf"),
        (("mmproj-F16.gguf", "mmproj-F32.gguf"), "m-F32.gguf", "", "mmproj-F32.gguf"),
        (("mmproj-a-F16.gguf", "mmproj-b-F16.gguf"), "a.gguf", "", None),
        (("mmproj-a-F16.gguf", "mmproj-b-F32.gguf"), "a.gguf", "f32", "mmproj-b-F32.gguf"),
        (("mmprojector.gguf", "m.gguf"), "m.gguf", "", None),
    ],
    ids=["one", "bare", "two-names", "closest", "same", "two-models", "named", "another-word"],
)
def test_the_projector_of_a_model_is_found(
    names: tuple[str, ...], model: str, quantization: str, expected: str | None
) -> None:
    assert choose_projector(names, model, quantization) == expected


def test_a_file_that_is_cut_short_is_downloaded_again(files: HubServer, cache: Path) -> None:
    work = download(files, cache, "BF16")
    path = work.run(work.plan())
    (path.parent / SHARDS[1]).resolve().write_bytes(b"m")
    assert work.cached() is None
    assert work.run(work.plan()) == path
    assert (path.parent / SHARDS[1]).read_bytes() == SHARDS[1].encode()


def test_the_only_file_needs_no_name(hub: HubServer, cache: Path) -> None:
    hub.repos["org/one"] = {"anything.gguf": b"gguf"}
    work = download(hub, cache, repo="org/one")
    assert work.run(work.plan()).name == "anything.gguf"


@pytest.mark.parametrize(
    ("quantization", "problem"),
    [("Q5_K_M", r"has none of Q5_K_M among its GGUF files; .*model-Q4_K_S\.gguf"), ("Q4", "has none of Q4 among")],
    ids=["absent", "ambiguous"],
)
def test_a_quantization_that_is_not_there(files: HubServer, cache: Path, quantization: str, problem: str) -> None:
    with pytest.raises(HubError, match=problem) as failed:
        download(files, cache, quantization).plan()
    assert failed.value.cause is HubCause.NO_CHECKPOINT


def test_several_without_the_default(hub: HubServer, cache: Path) -> None:
    hub.repos["org/two"] = {"a-Q8_0.gguf": b"a", "a-Q6_K.gguf": b"b"}
    with pytest.raises(HubError, match=r"has several, and not one Q4_K_M among .*: a-Q6_K\.gguf, a-Q8_0\.gguf"):
        download(hub, cache, repo="org/two").plan()


def test_no_gguf_file_for_a_quantization(hub: HubServer, cache: Path) -> None:
    with pytest.raises(HubError, match=r"org/tiny:Q8_0 has no Q8_0 GGUF file at its top level"):
        download(hub, cache, "Q8_0", "org/tiny").plan()


def test_a_name_with_the_characters_of_a_pattern(hub: HubServer, cache: Path) -> None:
    hub.repos["org/odd"] = {"model[1]-Q8_0.gguf": b"odd", "model1-Q6_K.gguf": b"another"}
    work = download(hub, cache, "Q8_0", "org/odd")
    assert work.run(work.plan()).read_bytes() == b"odd"


@pytest.mark.parametrize("name", ["m-00002-of-00003.gguf", "m-00000-of-00003.gguf"])
def test_shards_that_are_not_all_there(hub: HubServer, cache: Path, name: str) -> None:
    hub.repos["org/part"] = {name: b"part"}
    with pytest.raises(HubError, match=r"has not all shards of a model: m-00001-of-00003\.gguf is missing") as failed:
        download(hub, cache, repo="org/part").plan()
    assert failed.value.cause is HubCause.NO_CHECKPOINT


def test_a_model_beside_the_config_of_its_original_is_found_again(hub: HubServer, cache: Path) -> None:
    hub.repos["org/config"] = {"model-Q8_0.gguf": b"gguf", "config.json": b"{}"}
    for quantization in ("", "Q8_0"):
        work = download(hub, cache, quantization, "org/config")
        path = work.run(work.plan())
        assert work.cached() == path


def test_a_gguf_file_does_not_stand_for_the_safetensors_beside_it(hub: HubServer, cache: Path) -> None:
    hub.repos["org/both"] = {"model-Q8_0.gguf": b"gguf", "config.json": b"{}", "model.safetensors": b"weights"}
    work = download(hub, cache, "Q8_0", "org/both")
    assert work.cached() is None
    assert work.run(work.plan()).name == "model-Q8_0.gguf"
    plain = download(hub, cache, repo="org/both")
    assert plain.cached() is None
    assert (plain.run(plain.plan()) / "model.safetensors").exists()


def test_each_file_of_the_cache_is_listed_by_its_quantization(files: HubServer, cache: Path) -> None:
    for quantization in ("Q8_0", "BF16"):
        work = download(files, cache, quantization)
        work.run(work.plan())
    (model,) = HubCache(cache).read().models
    for name, path, size in model.entries():
        assert Download(name, files.url, cache).cached() == path
        assert size == sum(map(len, SHARDS)) if name.quantization == "BF16" else len(NAMES[2])
    assert [str(name) for name, _, _ in model.entries()] == [f"{REPO}:BF16", f"{REPO}:Q8_0"]


def test_a_quantization_that_ends_another_name_is_the_whole_name() -> None:
    names = ["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf", "m.Q8_0-00001-of-00002.gguf", "m.gguf"]
    found = [quantization_of(names, name) for name in models(names)]
    assert found == ["m-Q4_K_XL", "m-UD-Q4_K_XL", "Q8_0", "m"]
    assert [choose(names, each) for each in found] == models(names)


def test_one_quantization_is_removed(files: HubServer, cache: Path) -> None:
    """Its shards with their contents; with the last one the repository, and what another revision has stays."""
    for name in ("Q8_0", "BF16"):
        work = download(files, cache, name)
        path = work.run(work.plan())
    store, shards = HubCache(cache), HubId(REPO, quantization="bf16")
    ((revision, chosen),) = store.chosen(shards)
    assert [file.name for file in chosen] == list(SHARDS)
    assert store.remove(shards) >= sum(map(len, SHARDS))
    assert sorted(file.name for file in path.parent.iterdir()) == [PROJECTOR, "model-Q8_0.gguf"]
    assert len([*(store.folder_of(shards) / "blobs").iterdir()]) == 2
    with pytest.raises(HubError, match="does not have org/model-GGUF:bf16") as failed:
        store.remove(shards)
    assert failed.value.cause is HubCause.NOT_FOUND
    assert store.chosen(HubId(REPO, quantization="Q8_0")) == [(store.read().models[0], [])]
    store.remove(HubId(REPO, quantization="Q8_0"))
    assert not store.folder_of(shards).exists()
    assert not revision.path.exists()


def test_what_another_revision_has_of_a_quantization_stays(files: HubServer, cache: Path) -> None:
    for name in ("Q8_0", "Q4_K_M"):
        work = download(files, cache, name)
        older = work.run(work.plan()).parent
    files.repos[REPO]["README.md"] = b"another commit"
    work = download(files, cache, "Q8_0")
    newer = work.run(work.plan())
    assert older != newer.parent
    HubCache(cache).remove(HubId(REPO, older.name, "Q8_0"))
    assert sorted(file.name for file in older.iterdir()) == [PROJECTOR, "model-Q4_K_M.gguf"]
    assert newer.read_bytes() == b"model-Q8_0.gguf"


def test_safetensors_stay_beside_a_quantization_that_is_removed(hub: HubServer, cache: Path, tmp_path: Path) -> None:
    """So does what a link that somebody has put into the cache leads to."""
    hub.repos["org/both"] = {"model-Q8_0.gguf": b"gguf", "config.json": b"{}", "model.safetensors": b"weights"}
    for quantization in ("Q8_0", ""):
        work = download(hub, cache, quantization, "org/both")
        path = work.run(work.plan())
    store, own = HubCache(cache), tmp_path / "own-Q4_0.gguf"
    own.write_bytes(b"own")
    (path / "model-Q4_0.gguf").symlink_to(own)
    for quantization in ("Q8_0", "Q4_0"):
        store.remove(HubId("org/both", quantization=quantization))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert own.read_bytes() == b"own"


def test_names_are_completed_with_quantizations(files: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Q8_0", "BF16"):
        work = download(files, cache, name)
        work.run(work.plan())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    names = [REPO, f"{REPO}:BF16", f"{REPO}:Q8_0"]
    assert complete_hub_model("org/") == names
    assert complete_hub_model(f"{REPO}:Q") == names[2:]
