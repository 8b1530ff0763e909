"""The key of a compiled graph: the code that its trace runs, all of it and nothing else."""

import ast
from pathlib import Path

import pytest

from workers.iree.build import graph_plan as graphs
from workers.iree.build.source_digest import ROOT, imported_modules, source_digest, source_files

TREE = {
    "pack/__init__.py": "",
    "pack/graphs.py": "from pack.model import forward\nfrom pack import noise\nimport json\n",
    "pack/model.py": "def forward():\n    from pack.kernels import (\n        tile,\n        norm as other,\n    )\n",
    "pack/noise.py": "from pack import graphs\n",
    "pack/kernels/__init__.py": "import pack.lower, os\n",
    "pack/kernels/tile.py": "A = 1\n",
    "pack/kernels/norm.py": "B = 1\n",
    "pack/lower.py": "C = 1\n",
    "pack/service.py": '"""Serves."""\nfrom pack import graphs\n',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def digest(tree: Path) -> str:
    source_digest.cache_clear()
    return source_digest("pack.graphs", tree)


@pytest.mark.parametrize("name", [name for name in TREE if name != "pack/service.py"])
def test_an_edit_of_what_a_graph_is_made_of_changes_the_digest(tree: Path, name: str) -> None:
    before = digest(tree)
    (tree / name).write_text(TREE[name] + "EDITED = 1\n")
    assert digest(tree) != before


def test_an_edit_elsewhere_does_not(tree: Path) -> None:
    before = digest(tree)
    (tree / "pack/service.py").write_text('"""Serves models."""\n')
    (tree / "pack/new.py").write_text("X = 1\n")
    assert digest(tree) == before


def test_code_that_was_moved_into_a_new_package_still_counts(tree: Path) -> None:
    (tree / "pack/deeper").mkdir()
    (tree / "pack/deeper/__init__.py").write_text("")
    (tree / "pack/lower.py").rename(tree / "pack/deeper/lower.py")
    (tree / "pack/kernels/__init__.py").write_text("import pack.deeper.lower\n")
    before = digest(tree)
    (tree / "pack/deeper/lower.py").write_text("C = 2\n")
    assert digest(tree) != before


def test_a_renamed_module_changes_the_digest(tree: Path) -> None:
    before = digest(tree)
    (tree / "pack/kernels/tile.py").rename(tree / "pack/kernels/gemm.py")
    (tree / "pack/model.py").write_text(TREE["pack/model.py"])
    assert digest(tree) != before


def test_a_module_that_is_not_there_is_refused(tree: Path) -> None:
    with pytest.raises(LookupError, match=r"pack\.nothing"):
        source_files("pack.nothing", tree)


def test_the_graphs_are_made_of_model_and_kernels_and_not_of_the_service() -> None:
    files = set(source_files(graphs.__name__))
    assert {
        "workers.iree.build.graph_plan",
        "workers.iree.model.decoder",
        "workers.iree.kernels.attention.attention",
        "workers.sampling.sample",
    } <= files
    assert (
        not {"workers.process.service", "workers.engine.engine", "workers.engine.scheduler", "workers.iree.runner"}
        & files
    )


@pytest.mark.parametrize(
    "file", sorted(source_files(graphs.__name__).values()), ids=lambda file: str(file.relative_to(ROOT))
)
def test_every_import_of_a_keyed_file_is_found(file: Path) -> None:
    """Compared with `ast`."""
    source = file.read_text()
    found = imported_modules(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} <= found
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= found


@pytest.mark.parametrize(
    "source",
    [
        "from pack import (\n    one,  # the first (of two)\n    deep,\n)\n",
        "from pack import (  # :)\n    deep as other,\n)  # done\n",
        "import os; import pack.deep\n",
        "import os; from pack import deep\n",
        "from pack \\\n    import deep\n",
        "from pack import \\\n    deep\n",
        "import os, \\\n    pack.deep\n",
        "if True: import pack.deep\n",
        "try: from pack import deep\nexcept OSError: pass\n",
        "class A:\n    def f(self): import pack.deep as d\n",
        "\fimport pack.deep\n",
        "from pack import(deep)\n",
        "import pack.deep as d, os  # both\n",
        "from pack import one, deep",
    ],
)
def test_imports_are_found_in_any_form(source: str) -> None:
    assert "pack.deep" in imported_modules(source)


@pytest.mark.parametrize("source", ["from pack import one  # deep\n", "from pack import (one,  # , deep\n)\n"])
def test_comments_are_not_imports(source: str) -> None:
    assert imported_modules(source) == {"pack", "pack.one"}


def test_metadata_of_distributions_may_be_read() -> None:
    assert "importlib.metadata" in imported_modules("from importlib.metadata import entry_points\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("import importlib", "importlib"),
        ("import importlib.util", "importlib"),
        ("from importlib import import_module as load", "importlib"),
        ("deep = __import__('pack.deep')", "line 2 has `__import__`"),
        ("from . import deep", "line 2 has a relative import"),
        ("from .deep import one", "line 2 has a relative import"),
    ],
)
def test_an_import_that_cannot_be_followed_is_refused(tree: Path, line: str, problem: str) -> None:
    (tree / "pack/noise.py").write_text(f"from pack import graphs\n{line}\n")
    with pytest.raises(ImportError, match=rf"noise\.py: .*{problem}"):
        digest(tree)
