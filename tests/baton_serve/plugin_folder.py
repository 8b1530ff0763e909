"""Distributions with plug-ins, as an installer leaves them in a folder of `sys.path`."""

import importlib
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.backend_plugin import load_backend
from workers.plugins import registered


def write_distribution(
    folder: Path, name: str, groups: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], version: str = "1.0"
) -> None:
    """Write the modules, by their paths, and the metadata of a distribution with these entry points."""
    for path, text in modules.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = (
        "\n".join([f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())])
        for group, entries in groups.items()
    )
    (metadata / "entry_points.txt").write_text("\n\n".join(sections))
    importlib.invalidate_caches()


def write_project(folder: Path, project: str, modules: Mapping[str, str]) -> None:
    """Write the distribution of a `pyproject.toml`."""
    stated = tomllib.loads(project)["project"]
    write_distribution(folder, stated["name"], stated["entry-points"], modules, stated["version"])


@contextmanager
def on_the_path(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process and those that it starts find the distributions of a folder."""
    with patch.context() as inner:
        inner.syspath_prepend(str(folder))
        inner.setenv("PYTHONPATH", str(folder))
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    registered.cache_clear()
    load_backend.cache_clear()
