"""The chart, rendered with the values of its folder `ci`."""

from pathlib import Path

import pytest

from tests.deploy.helm.chart import CASES, Release
from tests.deploy.helm.library import installed, render


@pytest.fixture(scope="session")
def releases() -> dict[str, Release]:
    """The objects of each case."""
    if not installed():
        pytest.skip("Helm's library is not installed: pip install '.[helm]'")
    found = render(list(CASES.values()))
    assert [each.error for each in found] == [""] * len(CASES)
    return {name: Release(each.templates) for name, each in zip(CASES, found, strict=True)}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> str:
    """The name of a case."""
    return str(request.param)


@pytest.fixture
def release(releases: dict[str, Release], case: str) -> Release:
    """The objects of this case."""
    return releases[case]


@pytest.fixture
def written(release: Release, tmp_path: Path) -> dict[str, Path]:
    """The files baton.toml of the case, by the part that reads them."""
    files = {}
    for component in release.pods:
        files[component] = tmp_path / f"{component}.toml"
        files[component].write_text(release.toml(component))
    return files
