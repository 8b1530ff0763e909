"""The built distributions, and environments in which they are installed."""

from pathlib import Path

import pytest

from tests.baton_serve.installation import PACKAGES, ROOT, Installation, build, make_broken


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def from_wheel(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """Installed as by `pip install .`, beside another distribution that has packages of the same names."""
    made = Installation.make(tmp_path_factory.mktemp("user"))
    make_broken(made.site_packages, PACKAGES)
    made.install(str(wheel))
    return made


@pytest.fixture(scope="session")
def from_sdist(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> Installation:
    """Installed as by `pip install baton_serve-VERSION.tar.gz`, likewise."""
    made = Installation.make(tmp_path_factory.mktemp("packager"))
    make_broken(made.site_packages, PACKAGES)
    made.install(str(sdist))
    return made


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Installed as by `pip install -e .`, beside the same."""
    made = Installation.make(tmp_path_factory.mktemp("contributor"))
    make_broken(made.site_packages, PACKAGES)
    made.install("-e", str(ROOT))
    return made
