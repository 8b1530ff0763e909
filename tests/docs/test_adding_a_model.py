"""The guide to models: its examples are in the files that it names, and it explains every field of an adapter."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from workers.checkpoints.architectures.family import Family

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-model.md").read_text()
EXAMPLES = re.findall(
    r"In\s+`([\w/]+\.py)`:\n\n```python\n(\w+) = \{\n    # \.\.\.\n(.*?)^\}\n```", PAGE, re.DOTALL | re.MULTILINE
)


def test_every_example_names_its_file() -> None:
    own = len(re.findall(r"^```python\n# acme_llama/", PAGE, flags=re.MULTILINE))  # see test_plugin_pages
    assert len(EXAMPLES) == PAGE.count("```python") - own == 5


@pytest.mark.parametrize(("file", "table", "entry"), EXAMPLES, ids=[f"{file}-{table}" for file, table, _ in EXAMPLES])
def test_an_example_stands_in_the_table_of_its_file(file: str, table: str, entry: str) -> None:
    source = (ROOT / file).read_text()
    start = source.index(f"\n{table}: ")
    assert start < source.index(f"\n{entry}", start) < source.index("\n}\n", start)


def test_the_adapter_is_explained_field_by_field() -> None:
    pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
    from workers.mlx.architecture import Adapter

    section = PAGE.partition("## The adapter\n")[2]
    listed = re.findall(r"^\| .* \| `(\w+)` \|$", section, flags=re.MULTILINE)
    assert listed == [field.name for field in fields(Adapter)]


def test_what_the_first_example_states_are_fields() -> None:
    cells = re.findall(r"^\| .* \| (`.*`) \|$", PAGE.partition("## Granite")[0], flags=re.MULTILINE)
    stated = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert stated
    assert stated <= {field.name for field in fields(Family)}


def test_the_command_runs_folders_that_there_are() -> None:
    (command,) = re.findall(r"^pytest (.*)$", PAGE, flags=re.MULTILINE)
    assert all((ROOT / folder).is_dir() for folder in shlex.split(command))
