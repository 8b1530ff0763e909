"""What a compiled graph is keyed by: the code that its trace runs, all of it and nothing else."""

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


@pytest.mark.parametrize("package", ["protocol", "workers"])
def test_every_import_statement_is_found(package: str) -> None:
    """Compared with `ast`."""
    for file in sorted((ROOT / package).rglob("*.py")):
        source = file.read_text()
        found = set(imported_modules(source))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: a relative import is not followed"
                assert {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} <= found
            elif isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= found
