"""Lowering of JAX functions to one MLIR module that iree-compile takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.iree.kernels.ir.mlir_types import ELEMENTS, tensor
from workers.iree.lazy_jax import ArraySpec, jax

if TYPE_CHECKING:
    from jax.export import Exported

SCOPE = "model"
"""The parameter archive's name in the module."""
PARAMETER = "parameter."
"""Prefix of the module's globals that hold parameters."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One entry point: `function(*inputs, parameters)`, a tuple of results."""

    name: str
    function: Callable[..., tuple[jax.Array, ...]]
    inputs: tuple[ArraySpec, ...]
    scalars: int = 0
    """The number of last inputs that are int32 numbers, which the host passes by value."""
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs of an input and a result that share one buffer: the result is written over the input."""
    pure: bool = False
    """The function takes no parameters."""


def struct(shape: Sequence[int], dtype: str) -> ArraySpec:
    return ArraySpec(tuple(shape), dtype)


def type_of(value: Any) -> str:
    return tensor(tuple(value.shape), ELEMENTS[str(value.dtype)])


def lower_module(graphs: Sequence[Graph], parameters: Mapping[str, ArraySpec], bodies: Mapping[str, str]) -> str:
    """Return the text of one module with an entry point for each graph; they share the parameters.

    `bodies` are the kernels that the functions may call, those included that tracing them adds; those that they call
    are inserted.
    """
    called: set[str] = set()
    functions: list[str] = []
    for graph in graphs:
        own = {} if graph.pure else parameters
        exported = _export(graph, own, bodies)
        functions.append(_private(graph.name, exported.mlir_module(), called))
        functions.append(_entry(graph, own, [type_of(result) for result in exported.out_avals]))
    out = ["module @baton {"]
    for name, spec in parameters.items():
        source = f'#flow.parameter.named<"{SCOPE}"::"{name}">'
        out.append(f'  util.global private @"{PARAMETER}{name}" = {source} : {type_of(spec)}')
    return "\n".join([*out, *(bodies[name] for name in sorted(called)), *functions, "}"])


def _export(graph: Graph, parameters: Mapping[str, ArraySpec], bodies: Mapping[str, str]) -> Exported:
    count, names = len(graph.inputs), tuple(parameters)

    def main(*values: jax.Array) -> tuple[jax.Array, ...]:
        return graph.function(*values[:count], dict(zip(names, values[count:], strict=True)))

    export, jitted = jax.export, jax.jit(main, keep_unused=True)
    specs = [spec.traced() for spec in (*graph.inputs, *parameters.values())]
    jitted.trace(*specs)  # adds to the kernels; `export` finds the trace in JAX's cache
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in bodies]
    return export.export(jitted, platforms=["cpu"], disabled_checks=allowed)(*specs)


def _private(graph: str, text: str, called: set[str]) -> str:
    """Return the functions of an exported module under names of their own, with kernels in place of custom calls.

    Adds the kernels' names to `called`.
    """
    text = _strip_locations(text)
    body = text[text.index("{\n", text.index("module @")) + 2 : text.rindex("}")]
    body = re.sub(r' \{jax\.result_info = "[^"]*"\}', "", body)
    body = body.replace("func.func public @main", "func.func private @main")
    body = re.sub(r"(?<![\w#<])@(?!baton_)([A-Za-z_][\w.]*)", rf"@{graph}__\1", body)

    def call(match: re.Match[str]) -> str:
        called.add(match.group(1))
        return f"func.call @{match.group(1)}({match.group(2)}) : "

    attributes = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
    return re.sub(rf"stablehlo\.custom_call @(baton_\w+)\(([^)]*)\) {attributes} : ", call, body)


def _strip_locations(text: str) -> str:
    """Remove source locations: paths and line numbers would give equal programs different digests."""
    text = re.sub(r"^#loc.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r" loc\((?:#loc\d*|unknown|\"[^\"]*\"(?:\(#loc\d*\))?)\)", "", text)


def _entry(graph: Graph, parameters: Mapping[str, ArraySpec], results: Sequence[str]) -> str:
    """Return the public function: it takes the inputs, loads the parameters, and marks what is updated in place."""
    first_scalar = len(graph.inputs) - graph.scalars
    arguments, lines, values, types = [], [], [], []
    for i, spec in enumerate(graph.inputs):
        kind, scalar = type_of(spec), i >= first_scalar
        mark = ""
        if (result := dict(graph.in_place).get(i)) is not None:
            mark = f" {{iree.abi.output = {result} : index}}"
        arguments.append(f"%a{i}: " + ("i32" if scalar else kind + mark))
        if scalar:
            lines.append(f"    %s{i} = tensor.from_elements %a{i} : tensor<i32>")
        values.append(f"%s{i}" if scalar else f"%a{i}")
        types.append(kind)
    for i, (name, spec) in enumerate(parameters.items()):
        lines.append(f'    %w{i} = util.global.load immutable @"{PARAMETER}{name}" : {type_of(spec)}')
        values.append(f"%w{i}")
        types.append(type_of(spec))
    out, count = ", ".join(results), len(results)
    returned = ", ".join(f"%r#{i}" for i in range(count)) if count > 1 else "%r"
    return "\n".join(
        [
            f"  func.func public @{graph.name}({', '.join(arguments)}) -> ({out}) {{",
            *lines,
            f"    %r{f':{count}' if count > 1 else ''} = func.call @{graph.name}__main({', '.join(values)})"
            f" : ({', '.join(types)}) -> ({out})",
            f"    return {returned} : {out}",
            "  }",
        ]
    )
