"""The built distributions, and environments in which they are installed."""

from pathlib import Path

import pytest

from tests.baton_serve.installation import ROOT, Installation, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def from_wheel(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """Installed as by `pip install .`, beside another distribution that has packages of the same names."""
    return Installation.beside_others(tmp_path_factory.mktemp("user"), str(wheel))


@pytest.fixture(scope="session")
def from_sdist(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> Installation:
    """Installed as by `pip install baton_serve-VERSION.tar.gz`, likewise."""
    return Installation.beside_others(tmp_path_factory.mktemp("packager"), str(sdist))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Installed as by `pip install -e .`, beside the same."""
    return Installation.beside_others(tmp_path_factory.mktemp("contributor"), "-e", str(ROOT))
