"""Dispatches that are written by hand: a body of loops over memory and vectors in place of tensor operations.

`hal.executable.source` is IREE's way to bring one's own (samples/custom_dispatch): what is in it is compiled for the
target like the compiler's own dispatches, and nothing is fused into it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.iree.kernels.ir.builder import LINE, SIZES, Code, Value, tensor

ROWS = -1
"""In an operand's shape: as many as there are rows."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One buffer of a dispatch: its name in the body, shape and element."""

    name: str
    shape: tuple[int, ...]
    element: str
    seen_as: tuple[tuple[int, ...], str] | None = None
    """Another shape and element for the same bytes, in the body."""
    in_place: bool = False
    """An input that the body changes: it is a result as well."""

    @property
    def outside(self) -> str:
        return tensor(_sizes(self.shape), self.element)

    @property
    def inside(self) -> str:
        shape, element = self.seen_as or (self.shape, self.element)
        return tensor(_sizes(shape), element).replace("tensor", "memref", 1)


def _sizes(shape: Sequence[int]) -> list[int | str]:
    return ["?" if size == ROWS else size for size in shape]


def dispatch(
    name: str,
    inputs: Sequence[Operand],
    results: Sequence[Operand],
    workgroups: int,
    body: str,
    scratch: Sequence[Operand] = (),
) -> str:
    """A function `name` over tensors that runs `body` once for each of `workgroups`, whose number is `%id` there.

    Where operands have `ROWS` first, it does so for each row, `%row`, and takes their number, an index, first of all.
    Inputs that are in place come last among the results. `scratch` is memory that only the body uses.
    """
    arena, views = _views(scratch)
    made = [*results, *arena]
    operands = [*inputs, *made]
    tied = [each for each in inputs if each.in_place]
    rows = any(ROWS in each.shape for each in operands)
    kinds = ["storage_buffer" if each.in_place else "storage_buffer, ReadOnly" for each in inputs]
    kinds += ["storage_buffer"] * len(made)
    bindings = ", ".join(f"#hal.pipeline.binding<{kind}>" for kind in kinds)
    layout = f"#hal.pipeline.layout<constants = {int(rows)}, bindings = [{bindings}]>"
    size = "{%rows}" if rows else ""
    spans = "".join(
        f"""
        %{each.name} = hal.interface.binding.subspan layout({layout}) binding({i}) alignment(64) offset(%c0)
          : {each.inside}{size}"""
        for i, each in enumerate(operands)
    )
    spans += views
    number = f"""
        %count = hal.interface.constant.load layout({layout}) ordinal(0) : i32
        %rows = arith.index_castui %count : i32 to index
        %row = hal.interface.workgroup.id[1] : index"""
    arguments = ", ".join(["%rows: index"] * rows + [f"%{each.name}: {each.outside}" for each in inputs])
    passed = ", ".join(["%count"] * rows + [f"%{each.name}" for each in inputs])
    kinds_in = ", ".join(["i32"] * rows + [f"{each.outside}{size}" for each in inputs])
    kinds_out = ", ".join(each.outside for each in [*results, *tied])
    kinds_made = ", ".join([*(f"{each.outside}{size}" for each in made), *(f"%{each.name}" for each in tied)])
    places = [*range(len(results)), *range(len(made), len(made) + len(tied))]
    run = f"@{name}_code::@{name}_run{'[%rows]' if rows else ''}"
    return f"""
  hal.executable.source private @{name}_code {{
    hal.executable.export public @{name}_run ordinal(0) layout({layout})
        count(%device: !hal.device{", %rows: index" if rows else ""}) -> (index, index, index) {{
      %one = arith.constant 1 : index
      %count = arith.constant {workgroups} : index
      hal.return %count, {"%rows" if rows else "%one"}, %one : index, index, index
    }}
    builtin.module {{
      func.func @{name}_run() {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index{number if rows else ""}{spans}
        %id = hal.interface.workgroup.id[0] : index
{body}
        return
      }}
    }}
  }}
  func.func private @{name}({arguments}) -> ({kinds_out}) {{
    {"%count = arith.index_castui %rows : index to i32" if rows else ""}
    %out:{len(made) + len(tied)} = flow.dispatch {run}({passed}) : ({kinds_in}) -> ({kinds_made})
    return {", ".join(f"%out#{i}" for i in places)} : {kinds_out}
  }}"""


def _views(scratch: Sequence[Operand]) -> tuple[list[Operand], str]:
    """One buffer for all scratch memory, as a dispatch has room for few (32), and the text that parts it at lines."""
    lines, end = [], 0
    for each in scratch:
        lines.append(f"""
        %{each.name}_at = arith.constant {end} : index
        %{each.name} = memref.view %scratch[%{each.name}_at][] : memref<ARENAxi8> to {each.inside}""")
        end += -(-math.prod(each.shape) * SIZES[each.element] // LINE) * LINE
    arena = [Operand("scratch", (end,), "i8")] if scratch else []
    return arena, "".join(lines).replace("ARENA", str(end))


@dataclass(slots=True)
class Kernel:
    """Like a `Dispatch`, but its body works on memory: it can prefetch, and writes its results where they stay."""

    name: str
    workgroups: int
    code: Code = field(default_factory=Code)
    _inputs: list[Operand] = field(default_factory=list)
    _results: list[Operand] = field(default_factory=list)
    _scratch: list[Operand] = field(default_factory=list)

    def workgroup(self) -> str:
        return "%id"

    def take(self, shape: tuple[int, ...], element: str, seen_as: tuple[int, ...] | None = None) -> Value:
        """The next input; `seen_as` is another shape for it in the body."""
        return self._operand(self._inputs, "i", shape, element, seen_as or shape)

    def change(self, shape: tuple[int, ...], element: str, seen_as: tuple[int, ...] | None = None) -> Value:
        """The next input, which is changed in place: a result as well, after those that are given."""
        return self._operand(self._inputs, "i", shape, element, seen_as or shape, in_place=True)

    def give(self, shape: tuple[int, ...], element: str) -> Value:
        """The next result, to be `put` to."""
        return self._operand(self._results, "o", shape, element, shape)

    def between(self, shape: tuple[int, ...], element: str) -> Value:
        """Memory that all workgroups share, and that nobody sees afterwards."""
        return self._operand(self._scratch, "s", shape, element, shape)

    def _operand(
        self,
        operands: list[Operand],
        kind: str,
        shape: tuple[int, ...],
        element: str,
        inside: tuple[int, ...],
        *,
        in_place: bool = False,
    ) -> Value:
        operand = Operand(f"{kind}{len(operands)}", shape, element, (inside, element), in_place)
        operands.append(operand)
        return Value(f"%{operand.name}", inside, element, memory=True)

    def function(self) -> str:
        """The function's text: inputs in the order in which they were taken, results as they were given."""
        text = self.code.text()
        return dispatch(self.name, self._inputs, self._results, self.workgroups, text, self._scratch)
