"""Formats of cache rows change with the code that computes rows, so that no other version's are taken."""

from pathlib import Path

import pytest

from workers.checkpoints import rows_format as module
from workers.checkpoints.rows_format import rows_format_name, sources_digest

PACKAGES = ("mlx", "checkpoints")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for package in (*PACKAGES, "iree"):
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "kv.py").write_text(f'"""{package}"""')
    return tmp_path


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ("mlx/inner/kv.py", True),
        ("checkpoints/new.py", True),
        ("checkpoints/inner/kv.py", True),
        ("iree/inner/kv.py", False),
        ("mlx/inner/notes.md", False),
    ],
)
def test_the_digest_is_that_of_all_modules_of_the_packages(root: Path, change: str, changes: bool) -> None:
    before = sources_digest.__wrapped__(root, PACKAGES)
    assert before == sources_digest.__wrapped__(root, PACKAGES)
    (root / change).write_text("changed")
    assert (sources_digest.__wrapped__(root, PACKAGES) != before) == changes


def test_a_module_that_is_renamed_or_divided_is_a_change(root: Path) -> None:
    found = {sources_digest.__wrapped__(root, PACKAGES)}
    file = root / "mlx" / "inner" / "kv.py"
    file.rename(file.with_name("rows.py"))
    found.add(sources_digest.__wrapped__(root, PACKAGES))
    assert len(found) == 2


def test_a_format_has_the_source_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    name = rows_format_name("mlx", ["bfloat16"])
    assert name.startswith("mlx-")
    assert name == rows_format_name("mlx", ["bfloat16"])
    assert len({name, rows_format_name("mlx", ["float32"]), rows_format_name("iree", ["bfloat16"])}) == 3
    asked: list[tuple[str, ...]] = []

    def other(root: Path, packages: tuple[str, ...]) -> str:
        asked.append(packages)
        assert all((root / package).is_dir() for package in packages)
        return "another"

    monkeypatch.setattr(module, "sources_digest", other)
    assert rows_format_name("mlx", ["bfloat16"]) != name
    assert asked == [("mlx", "checkpoints", "vision")]
