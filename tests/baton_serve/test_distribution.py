"""Contents of the distributions, and additions of an installation to site-packages."""

import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import trove_classifiers
from packaging.metadata import Metadata

from baton_serve import __version__
from tests.baton_serve.installation import PACKAGES, ROOT, Installation, build, run

PRIVATE = "baton_serve/_packages"
METADATA = f"baton_serve-{__version__}.dist-info"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_has_every_module_below_one_name(wheel: Path) -> None:
    modules = {name for name in contents(wheel) if name.endswith(".py")}
    sources = {
        f"{PRIVATE}/{file.relative_to(ROOT).as_posix()}" for name in PACKAGES for file in (ROOT / name).rglob("*.py")
    }
    assert modules == {"baton_serve/__init__.py", "baton_serve/start.py"} | sources


def test_a_wheel_has_the_data_that_is_read_at_run_time(wheel: Path) -> None:
    names = contents(wheel)
    model = {f"{PRIVATE}/models/builtin/{file.name}" for file in (ROOT / "models" / "builtin").iterdir()}
    assert f"{PRIVATE}/models/builtin/model.safetensors" in model
    page = {f"{PRIVATE}/gateway/admin/page/{file.name}" for file in (ROOT / "gateway" / "admin" / "page").iterdir()}
    assert f"{PRIVATE}/gateway/admin/page/index.html" in page
    assert model | page | {"baton_serve/py.typed"} <= set(names)
    assert f"{METADATA}/licenses/LICENSE" in names


def test_the_draft_model_is_in_the_sdist_alone(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert f"baton_serve-{__version__}/models/builtin_draft/model.safetensors" in archive.getnames()
    assert not [name for name in contents(wheel) if "builtin_draft" in name]


def test_a_wheel_has_no_tests_and_nothing_that_a_run_leaves_behind(wheel: Path) -> None:
    parts = {part for name in contents(wheel) for part in Path(name).parts}
    assert not parts & {"tests", "bench", "docs", "deploy", "__pycache__"}
    assert not [part for part in parts if Path(part).suffix in {".pyc", ".vmfb", ".log"}]


def test_the_sdist_has_the_files_for_operators(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    named = {file.relative_to(ROOT).as_posix() for file in (ROOT / "deploy").rglob("*") if file.is_file()}
    assert named
    assert named | {"constraints.txt", "CHANGELOG.md", "docs/operations/settings.md", "tests/conftest.py"} <= packed


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / "again", tmp_path / f"baton_serve-{__version__}")
    assert contents(again) == contents(wheel)


def test_the_metadata_names_what_a_package_index_shows(wheel: Path) -> None:
    metadata = Parser().parsestr(contents(wheel)[f"{METADATA}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "baton-serve",
        __version__,
        "Apache-2.0",
    )
    assert set(metadata.get_all("Provides-Extra") or ()) == {
        "iree",
        "mlx",
        "otel",
        "redis",
        "ray",
        "helm",
        "test",
        "reference",
        "bench",
    }
    assert not [each for each in metadata.get_all("Requires-Dist") or () if each.startswith("baton[")]


def test_the_metadata_is_valid(wheel: Path) -> None:
    """By the specification of core metadata, the list of SPDX licenses and that of the classifiers."""
    metadata = Metadata.from_email(contents(wheel)[f"{METADATA}/METADATA"], validate=True)
    assert set(metadata.classifiers or ()) <= trove_classifiers.classifiers
    assert metadata.requires_python == ">=3.11"
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_files == ["LICENSE"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.exhaustive)])
def test_what_is_installed_works(kind: str, request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    installed: Installation = request.getfixturevalue(f"from_{kind}")
    baton, cache = str(installed.baton), ("--cache-dir", str(cache_dir))
    assert run(baton, "--version", cwd=tmp_path) == f"baton {__version__}\n"
    assert "works" in run(baton, "doctor", *cache, cwd=tmp_path)
    words = ("-p", "The capital of France is", "--no-chat-template", "--max-tokens", "8", "--temperature", "0")
    assert "Paris" in run(
        baton, "generate", "--backend", "iree", *cache, *words, cwd=tmp_path, timeout_s=500
    )  # it compiles


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_site_packages_gets_one_name(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    installed = Installation.make(tmp_path).install(str(request.getfixturevalue(kind)))
    assert installed == {"baton_serve", METADATA}


def test_an_editable_installation_adds_a_path_and_no_package(tmp_path: Path) -> None:
    made = Installation.make(tmp_path)
    assert made.install("-e", str(ROOT)) == {"_baton_serve.pth", METADATA}
    assert (made.site_packages / "_baton_serve.pth").read_text().split() == [str(ROOT)]


def test_the_package_that_can_be_imported_knows_its_version(from_wheel: Installation, tmp_path: Path) -> None:
    program = "import baton_serve; print(baton_serve.__version__)"
    assert run(str(from_wheel.python), "-c", program, cwd=tmp_path).strip() == __version__
