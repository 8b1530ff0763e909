"""Structure of the source: imports point one way, and each heavy library is imported in one place."""

import ast
from collections import Counter
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "baton_serve": set(),
    "protocol": set(),
    "actors": {"protocol"},
    "gateway": {"baton_serve", "protocol", "actors"},
    "workers": {"baton_serve", "protocol", "actors"},
    "models": {"protocol", "workers"},
    "cli": {"baton_serve", "protocol", "actors", "gateway", "workers", "models"},
}
"""Packages that each package may import, besides itself."""

_GATEWAY_BASE = {
    *("host_names", "settings", "errors", "metrics", "tracing", "body_budget", "answer_budget", "key_weights"),
    "repository_names",
}
PARTS_MAY_IMPORT: dict[str, dict[str, set[str]]] = {
    "gateway": {
        "host_names": set(),
        "key_weights": set(),
        "repository_names": set(),
        "settings": {"host_names", "key_weights", "repository_names"},
        "errors": set(),
        "garbage_collection": set(),
        "tracing": set(),
        "metrics": {"settings"},
        "body_budget": {"errors"},
        "answer_budget": set(),
        "loop_lag": set(),
        "generation": {"errors", "settings"},
        "routing": _GATEWAY_BASE | {"generation"},
        "models": _GATEWAY_BASE | {"routing"},
        "keys": _GATEWAY_BASE,
        "http": _GATEWAY_BASE | {"keys"},
        "images": _GATEWAY_BASE,
        "streaming": _GATEWAY_BASE | {"generation", "routing", "keys", "http", "images"},
        "shared": _GATEWAY_BASE | {"routing", "keys", "streaming"},
        "openai": _GATEWAY_BASE | {"generation", "routing", "keys", "http", "images", "streaming"},
        "anthropic": _GATEWAY_BASE | {"generation", "routing", "keys", "http", "images", "streaming"},
        "ollama": _GATEWAY_BASE | {"generation", "routing", "keys", "http", "images", "streaming", "models"},
        "responses": _GATEWAY_BASE | {"generation", "routing", "http", "images", "streaming", "openai"},
        "fleet": _GATEWAY_BASE | {"routing", "http", "streaming", "models"},
        "fronts": _GATEWAY_BASE | {"garbage_collection", "loop_lag", "http", "openai", "fleet"},
        "admin": _GATEWAY_BASE | {"routing", "keys", "http", "fleet"},
        "openapi": _GATEWAY_BASE
        | {
            "generation",
            "routing",
            "keys",
            "http",
            "streaming",
            "openai",
            "responses",
            "anthropic",
            "ollama",
            "fleet",
            "admin",
        },
        "app": _GATEWAY_BASE
        | {
            "routing",
            "keys",
            "http",
            "images",
            "streaming",
            "openai",
            "responses",
            "anthropic",
            "ollama",
            "fleet",
            "admin",
        }
        | {"openapi", "models"},
        "daemon": _GATEWAY_BASE
        | {"garbage_collection", "loop_lag", "routing", "keys", "http", "streaming", "responses", "fleet", "fronts"}
        | {"app", "admin", "models", "shared"},
    },
    "gateway.responses": {
        "errors": set(),
        "ids": set(),
        "unsupported": set(),
        "items": {"ids", "unsupported"},
        "request": {"unsupported", "items"},
        "answer": {"ids", "items"},
        "answer_schema": {"items"},
        "store": {"items"},
        "event_feed": set(),
        "background": {"answer", "store", "event_feed"},
        "service": {"ids", "items", "request", "answer", "store", "event_feed", "background"},
        "endpoints": {"request", "store", "service"},
        "dialect": {"errors", "service", "endpoints"},
    },
    "workers": {
        "errors": set(),
        "precision": set(),
        "plugins": {"errors"},
        "load_options": {"precision"},
        "host": {"errors", "precision"},
        "checkpoints": {"errors", "precision", "plugins"},
        "sampling": set(),
        "hub": {"errors", "checkpoints"},
        "text": {"checkpoints"},
        "prefix_store": set(),
        "vision": {"errors", "precision", "checkpoints"},
        "pooling": {"errors", "checkpoints", "text"},
        "engine": {"errors", "sampling", "prefix_store", "vision", "pooling"},
        "output_formats": {"errors", "text", "engine"},
        "grammar": {"errors", "checkpoints", "sampling", "text", "engine", "output_formats"},
        "faults": {"errors", "sampling", "engine", "vision"},
        "scripted": {"errors", "sampling", "engine", "vision", "pooling"},
        "backend_plugin": {"load_options", "host", "checkpoints", "engine", "plugins"},
        "mlx": {
            *("errors", "precision", "plugins", "load_options", "host", "checkpoints", "sampling", "engine"),
            *("vision", "pooling"),
        },
        "iree": {
            *("errors", "precision", "load_options", "host", "checkpoints", "sampling", "engine", "vision", "pooling"),
        },
        "process": {
            *("errors", "precision", "load_options", "host", "checkpoints", "sampling", "text", "engine", "grammar"),
            *("output_formats", "faults", "scripted", "mlx", "iree", "prefix_store", "plugins", "backend_plugin"),
            *("vision", "pooling"),
        },
        "inspection": {"errors", "precision", "checkpoints", "vision", "pooling", "process"},
        "local_model": {"load_options", "engine", "grammar", "text", "output_formats", "process"},
        "__main__": {"host", "load_options", "process"},
    },
    "cli": {
        "usage": set(),
        "config": set(),
        "client": {"config"},
        "terminal": {"config", "client"},
        "chaos": {"config", "client"},
        "scaling": {"config", "client"},
        "commands": {"usage", "config", "client", "terminal", "chaos", "scaling"},
        "declarations": {"usage", "config", "client", "terminal", "commands"},
        "main": {"usage", "config", "terminal", "commands", "declarations"},
        "__main__": {"main"},
    },
    "workers.iree": {
        "kernels": set(),
        "device": set(),
        "lazy_jax": set(),
        "model": {"kernels", "lazy_jax"},
        "lora": {"device", "model", "lazy_jax"},
        "build": {"kernels", "device", "model", "lora", "lazy_jax"},
        "kv": {"model"},
        "kv_ring": {"kv"},
        "kv_groups": {"kv", "kv_ring"},
        "kv_memory": {"kernels", "device", "model", "build", "kv", "kv_groups"},
        "rows_format": {"device", "model", "build"},
        "probe": {"device"},
        "batch_inputs": {"device"},
        "graph_registry": {"device", "build"},
        "sampler": {"device", "build", "graph_registry"},
        "mtp": {"device", "build", "batch_inputs", "graph_registry", "sampler"},
        "encoder": {"device", "model", "build", "batch_inputs", "graph_registry"},
        "slot_state_buffer": {"device", "build"},
        "vision": {"device", "model", "build"},
        "hidden_rows": set(),
        "execution": {
            *(
                "hidden_rows",
                "device",
                "model",
                "lora",
                "build",
                "kv_memory",
                "batch_inputs",
                "graph_registry",
                "sampler",
            ),
            *("slot_state_buffer", "rows_format", "mtp"),
        },
        "runner": {
            *(
                "execution",
                "device",
                "model",
                "lora",
                "build",
                "kv_memory",
                "batch_inputs",
                "graph_registry",
                "sampler",
            ),
            *("mtp", "vision"),
        },
    },
    "workers.iree.kernels": {
        "ir": set(),
        "rowwise": {"ir"},
        "matmul": {"ir", "rowwise"},
        "attention": {"ir", "rowwise"},
        "recurrent": {"ir", "rowwise"},
        "latent": {"ir", "rowwise", "matmul"},
        "moe": {"ir", "rowwise", "matmul"},
        "sampling": {"ir"},
        "fused_layer": {"ir", "rowwise", "matmul", "attention"},
    },
}
"""Parts (sub-packages and modules) of a package that each of its parts may import, lower layers first."""

MAX_MODULES = 16
"""Modules in one folder, `__init__.py` not counted."""

IMPORTED_IN = {
    "zmq": ("actors/transport/",),
    "mlx": ("workers/mlx/", "models/"),
    "mlx_lm": ("workers/mlx/", "models/"),
    "iree": ("workers/iree/",),
    "jax": ("workers/iree/", "models/"),
    "jaxlib": ("workers/iree/", "models/"),
    "httpx": ("gateway/images/", "cli/"),
    "hypercorn": ("gateway/http/server.py", "gateway/http/connection/"),
    "starlette": ("gateway/",),
    "prometheus_client": ("gateway/metrics/", "cli/client/"),
    "opentelemetry": ("gateway/tracing/",),
    "redis": ("gateway/shared/",),
    "llguidance": ("workers/grammar/",),
    "tokenizers": ("workers/", "models/"),
    "jinja2": ("workers/text/", "models/"),
    "safetensors": ("workers/", "models/"),
    "gguf": ("workers/checkpoints/gguf/",),
    "huggingface_hub": ("workers/hub/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "prompt_toolkit": ("cli/",),
    "pydantic_settings": ("cli/",),
    "ray": ("cli/scaling/ray_cluster.py",),
}
"""Files and folders in which a library may be imported."""

NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
"""Modules that deserialize code or objects."""

MAY_USE = {
    "protocol": {
        "protocol",
        "msgspec",
        "collections",
        "enum",
        "typing",
        "array",
        "bisect",
        "hashlib",
        "re",
        "dataclasses",
    },
    "baton_serve": {"os", "sys", "runpy"},
}
"""All that these packages may import. `baton_serve` runs before PYTHONPATH is out of the way."""


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
    """Yield every import of a module, at any depth, including `importlib.import_module("...")`."""
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


def part_of(module: str, package: str) -> str | None:
    """Return the part of `package` that a module is or belongs to; None for a module outside of it."""
    return module[len(package) + 1 :].partition(".")[0] if f"{module}.".startswith(f"{package}.") else None


def breaches_within(one: Import) -> Iterator[str]:
    """Yield an import between parts of a package if it violates `PARTS_MAY_IMPORT`."""
    importer = one.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for package, may_import in PARTS_MAY_IMPORT.items():
        part, imported = part_of(importer, package), part_of(one.module, package)
        if part and imported is not None and imported not in may_import.get(part, set()) | {part}:
            yield f"{one}: {package}.{part} may not import {one.module}"


def breaches(found: Iterator[Import]) -> Iterator[str]:
    """Yield every import that violates the tables above."""
    for one in found:
        yield from breaches_within(one)
        package = one.file.partition("/")[0]
        if one.top in MAY_IMPORT and one.top != package and one.top not in MAY_IMPORT[package]:
            yield f"{one}: {package} may not import {one.top}"
        if not any(one.file.startswith(place) for place in IMPORTED_IN.get(one.top, (one.file,))):
            yield f"{one}: only {' and '.join(IMPORTED_IN[one.top])} may"
        if one.top in NEVER or one.top in {"tests", "bench"}:
            yield f"{one}: nothing may"
        if one.top not in MAY_USE.get(package, {one.top}):
            yield f"{one}: {package} imports {', '.join(sorted(MAY_USE[package]))} only"


def modules() -> dict[str, Path]:
    """The modules of the product by their dotted names."""
    found = {}
    for package in MAY_IMPORT:
        for file in sources(package):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def imported_modules(source: str, of: Container[str]) -> Iterator[str]:
    """The modules `of` the product that a module imports, those for type checking alone included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in of)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                inner = [f"{module}.{name.name}" for name in names]
                yield from (name for name in inner if name in of)
                if module in of and not all(name in of for name in inner):
                    yield module


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle in the graph, from a node to itself; empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way_and_libraries_are_imported_in_one_place(package: str) -> None:
    files = sources(package)
    assert files
    found = (one for file in files for one in imports_of(file.read_text(), file.relative_to(ROOT).as_posix()))
    assert list(breaches(found)) == []


@pytest.mark.parametrize("package", PARTS_MAY_IMPORT)
def test_every_part_has_its_layer_and_imports_lower_ones_only(package: str) -> None:
    folder = ROOT / package.replace(".", "/")
    parts = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(PARTS_MAY_IMPORT[package])
    below: set[str] = set()
    for part, may_import in PARTS_MAY_IMPORT[package].items():
        assert may_import <= below, part
        below.add(part)


def test_no_imports_form_a_cycle() -> None:
    files = modules()
    graph = {module: set(imported_modules(file.read_text(), files)) - {module} for module, file in files.items()}
    assert cycle(graph) == []


def test_a_cycle_is_found() -> None:
    found = {
        "a": set(imported_modules("if TYPE_CHECKING:\n    from a.b import C", {"a", "a.b", "a.c"})),
        "a.b": set(imported_modules("def f():\n    from a import c", {"a", "a.b", "a.c"})),
        "a.c": set(imported_modules("import a\nimport json", {"a", "a.b", "a.c"})),
    }
    assert found == {"a": {"a.b"}, "a.b": {"a.c"}, "a.c": {"a"}}
    assert set(cycle(found)) == set(found)
    assert cycle(found | {"a.c": set()}) == []


@pytest.mark.parametrize("top", [*MAY_IMPORT, "bench", "tests"])
def test_no_folder_has_many_modules(top: str) -> None:
    count = Counter(file.parent for file in sources(top) if file.name != "__init__.py")
    assert {folder.relative_to(ROOT).as_posix(): n for folder, n in count.items() if n > MAX_MODULES} == {}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("gateway/routing/router.py", "import workers.process.spec"),
        ("cli/chaos/trial.py", "from cli.commands.chaos import run_chaos"),
        ("cli/client/event_stream.py", "from cli import main"),
        ("gateway/routing/router.py", "from gateway.openai.errors import DONE"),
        ("gateway/http/exchange.py", "from gateway.routing.router import Router"),
        ("gateway/streaming/reply.py", "from gateway.openai import errors"),
        ("gateway/settings.py", "import gateway.metrics"),
        ("gateway/routing/router.py", "from gateway import openai"),
        ("workers/engine/engine.py", "from workers.process.spec import WorkerSpec"),
        ("workers/sampling/sample.py", "from workers import engine"),
        ("workers/local_model.py", "import workers.iree.runner"),
        ("workers/engine/engine.py", "from gateway.routing.router import Router"),
        ("protocol/codec.py", "import actors"),
        ("protocol/codec.py", "import json"),
        ("baton_serve/start.py", "import json"),
        ("actors/actor.py", "def f():\n    import zmq.asyncio"),
        ("workers/engine/engine.py", "from mlx import core"),
        ("workers/iree/kernels/ir/kernel.py", "from workers.iree.model.ops import Ops"),
        ("workers/iree/kernels/ir/kernel.py", "import workers.iree.runner"),
        ("workers/iree/kernels/ir/kernel.py", "import workers.iree.kernels.matmul.linear"),
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
        ("cli/commands/chaos.py", "from cli.chaos.trial import Trial"),
        ("workers/process/loading.py", "from workers.engine.engine import BatchEngine"),
        ("actors/transport/link.py", "import zmq.asyncio"),
        ("workers/mlx/runner.py", "import mlx.core as mx"),
        ("workers/iree/model/ops.py", "import workers.iree.kernels.ir.kernel"),
        ("workers/iree/model/ops.py", "import workers.iree.model.packed_matrix"),
        ("workers/iree/runner.py", "import workers.iree.build.recipe"),
        ("gateway/http/server.py", "import hypercorn"),
        ("gateway/openai/chunks.py", "from gateway.openai.errors import DONE"),
        ("gateway/app.py", "from gateway.openai.dialect import openai_dialect"),
        ("actors/process/child.py", "from . import link"),
    ],
)
def test_what_is_allowed_is_not_reported(file: str, source: str) -> None:
    assert list(breaches(imports_of(source, file))) == []


def classes(source: str) -> list[str]:
    """The names of a module's classes, private ones included."""
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def test_a_class_name_has_one_meaning() -> None:
    files = [file for top in (*MAY_IMPORT, "bench") for file in sources(top)]
    defined = [(name, file.relative_to(ROOT).as_posix()) for file in files for name in classes(file.read_text())]
    count = Counter(name for name, _ in defined)
    assert [(name, file) for name, file in sorted(defined) if count[name] > 1] == []


def test_classes_are_found() -> None:
    assert classes("class A: ...\nclass _B: ...\ndef f():\n    class C: ...") == ["A", "_B"]


def test_every_package_is_typed_and_has_a_docstring() -> None:
    for package in MAY_IMPORT:
        assert (ROOT / package / "py.typed").is_file(), package
        assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())), package
