"""The walls of the house: imports point one way, and each heavy library enters by its one door."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "protocol": set(),
    "actors": {"protocol"},
    "gateway": {"protocol", "actors"},
    "workers": {"protocol", "actors"},
    "models": {"protocol", "workers"},
    "cli": {"protocol", "actors", "gateway", "workers", "models"},
}
"""Which packages of the house a package may import, besides itself."""

INSIDE: dict[str, dict[str, set[str]]] = {
    "workers/iree": {
        "kernels": set(),
        "device": set(),
        "model": {"kernels"},
        "build": {"kernels", "device", "model"},
    },
    "workers/iree/kernels": {
        "ir": set(),
        "rowwise": {"ir"},
        "matmul": {"ir", "rowwise"},
        "attention": {"ir", "rowwise"},
        "moe": {"ir", "rowwise", "matmul"},
        "sampling": {"ir"},
    },
}
"""For a folder, which of its sub-folders each of them may import besides itself. The modules of the folder itself may
import all of them, and none of them may import such a module."""

DOORS = {
    "zmq": ("actors/transport/",),
    "mlx": ("workers/mlx/", "models/"),
    "mlx_lm": ("workers/mlx/", "models/"),
    "iree": ("workers/iree/",),
    "jax": ("workers/iree/", "models/"),
    "jaxlib": ("workers/iree/", "models/"),
    "hypercorn": ("gateway/http/server.py",),
    "starlette": ("gateway/",),
    "prometheus_client": ("gateway/",),
    "tokenizers": ("workers/", "models/"),
    "jinja2": ("workers/text/", "models/"),
    "safetensors": ("workers/", "models/"),
    "huggingface_hub": ("workers/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "prompt_toolkit": ("cli/",),
    "pydantic_settings": ("cli/",),
}
"""Where a library may be imported: these files, and files in these folders."""

NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
"""Modules that turn bytes into code or objects."""

PROTOCOL_MAY_USE = {"msgspec", "collections", "enum", "typing"}


class Import(NamedTuple):
    file: str
    line: int
    module: str

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(source: str, file: str) -> Iterator[Import]:
    """Every import of a module, at any depth of it, the ones by `importlib.import_module("...")` included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(file, node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield Import(file, node.lineno, module)
            case ast.ImportFrom():
                yield Import(file, node.lineno, file.partition("/")[0])
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield Import(file, node.lineno, module)


def breaches(found: Iterator[Import]) -> Iterator[str]:
    """Every import that goes against the tables above."""
    for one in found:
        package = one.file.partition("/")[0]
        if one.top in MAY_IMPORT and one.top != package and one.top not in MAY_IMPORT[package]:
            yield f"{one}: {package} may not import {one.top}"
        if not any(one.file.startswith(door) for door in DOORS.get(one.top, (one.file,))):
            yield f"{one}: only {' and '.join(DOORS[one.top])} may"
        if one.top in NEVER or one.top in {"tests", "bench"}:
            yield f"{one}: nothing may"
        if package == "protocol" and one.top not in PROTOCOL_MAY_USE | {"protocol"}:
            yield f"{one}: protocol imports msgspec only"


def breaches_inside(folder: str, found: Iterator[Import]) -> Iterator[str]:
    """Every import between sub-folders of `folder` that goes against `INSIDE`."""
    table, package = INSIDE[folder], folder.replace("/", ".") + "."
    for one in found:
        here, inside, _ = one.file.removeprefix(folder + "/").partition("/")
        if not inside or not one.module.startswith(package):
            continue
        there = one.module.removeprefix(package).partition(".")[0]
        if there != here and there not in table.get(here, set()):
            yield f"{one}: {folder}/{here} may not"


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way_and_enter_by_their_door(package: str) -> None:
    files = sources(package)
    assert files
    found = (one for file in files for one in imports_of(file.read_text(), file.relative_to(ROOT).as_posix()))
    assert list(breaches(found)) == []


@pytest.mark.parametrize("folder", INSIDE)
def test_sub_folders_import_one_way(folder: str) -> None:
    files = sources(folder)
    assert {file.relative_to(ROOT / folder).parts[0] for file in files if file.parent != ROOT / folder} == set(
        INSIDE[folder]
    )
    found = (one for file in files for one in imports_of(file.read_text(), file.relative_to(ROOT).as_posix()))
    assert list(breaches_inside(folder, found)) == []


@pytest.mark.parametrize(
    ("file", "source", "breach"),
    [
        ("workers/iree/kernels/ir/kernel.py", "from workers.iree.model.ops import Ops", True),
        ("workers/iree/kernels/ir/kernel.py", "import workers.iree.runner", True),
        ("workers/iree/model/ops.py", "import workers.iree.kernels.ir.kernel", False),
        ("workers/iree/model/ops.py", "import workers.iree.model.packed_matrix", False),
        ("workers/iree/runner.py", "import workers.iree.build.recipe", False),
    ],
)
def test_a_breach_between_sub_folders_is_found(file: str, source: str, breach: bool) -> None:
    assert bool(list(breaches_inside("workers/iree", imports_of(source, file)))) is breach


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("gateway/routing/router.py", "import workers.process.spec"),
        ("workers/engine/engine.py", "from gateway.routing.router import Router"),
        ("protocol/codec.py", "import actors"),
        ("protocol/codec.py", "import json"),
        ("actors/actor.py", "def f():\n    import zmq.asyncio"),
        ("workers/engine/engine.py", "from mlx import core"),
        ("workers/process/backends.py", "import importlib\nimportlib.import_module('iree.runtime')"),
        ("gateway/app.py", "from hypercorn.asyncio import serve"),
        ("cli/main.py", "import pickle"),
        ("cli/main.py", "from tests import checkpoints"),
    ],
)
def test_a_breach_is_found(file: str, source: str) -> None:
    assert list(breaches(imports_of(source, file)))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("cli/main.py", "import workers.process.spec"),
        ("actors/transport/link.py", "import zmq.asyncio"),
        ("workers/mlx/runner.py", "import mlx.core as mx"),
        ("gateway/http/server.py", "import hypercorn"),
        ("actors/process/child.py", "from . import link"),
    ],
)
def test_what_is_allowed_is_not_reported(file: str, source: str) -> None:
    assert list(breaches(imports_of(source, file))) == []


def test_every_package_is_typed_and_says_what_it_is() -> None:
    for package in MAY_IMPORT:
        assert (ROOT / package / "py.typed").is_file(), package
        assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())), package
