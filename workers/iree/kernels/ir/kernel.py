"""Kernels whose every instruction is chosen here: loops over memory and vectors, in place of tensor operations.

`hal.executable.source` is IREE's way to add kernels (samples/custom_dispatch): its content is compiled for the target
like the compiler's own dispatches, and nothing is fused into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import ROWS, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, INDEX, size_of, tensor
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class _Operand:
    """A buffer of a kernel: the tensor that callers pass or get, and the memory that the body sees."""

    shape: tuple[int, ...]
    memory: Memory
    in_place: bool = False

    @property
    def name(self) -> str:
        return self.memory.name

    @property
    def tensor(self) -> str:
        return tensor(["?" if size == ROWS else size for size in self.shape], self.memory.element)


class Kernel:
    """A function over tensors that runs one body for each of its workgroups.

    Where operands have `ROWS` as their first dimension, it runs the body for each row, too, and the function takes the
    number of rows, an index, before all operands.
    """

    def __init__(self, name: str, workgroups: int) -> None:
        self.name = name
        self.workgroups = workgroups
        self.code = Code()
        self._inputs: list[_Operand] = []
        self._results: list[_Operand] = []
        self._scratch: list[_Operand] = []

    @property
    def workgroup(self) -> Value:
        """The number of this workgroup."""
        return Value(self.code, "%workgroup", INDEX)

    @property
    def row(self) -> Value:
        """The number of this row."""
        return Value(self.code, "%row", INDEX)

    @property
    def partition(self) -> Partition:
        """The workgroup's partition of the work."""
        return Partition(self.workgroup, self.workgroups)

    def input(self, name: str, shape: tuple[int, ...], element: str, view: tuple[int, ...] | None = None) -> Memory:
        """Add the next input; `view` is another shape for it in the body."""
        return self._add(self._inputs, f"%i_{name}", shape, element, view)

    def in_place(self, name: str, shape: tuple[int, ...], element: str, view: tuple[int, ...] | None = None) -> Memory:
        """Add the next input, which is updated in place: it is a result as well, after the outputs."""
        return self._add(self._inputs, f"%i_{name}", shape, element, view, in_place=True)

    def output(self, name: str, shape: tuple[int, ...], element: str) -> Memory:
        """Add the next result."""
        return self._add(self._results, f"%o_{name}", shape, element)

    def scratch(self, shape: tuple[int, ...], element: str) -> Memory:
        """Add memory that all workgroups share and that no caller sees."""
        return self._add(self._scratch, f"%s{len(self._scratch)}", shape, element)

    def _add(
        self,
        operands: list[_Operand],
        name: str,
        shape: tuple[int, ...],
        element: str,
        view: tuple[int, ...] | None = None,
        *,
        in_place: bool = False,
    ) -> Memory:
        if any(each.name == name for each in operands):
            raise ValueError(f"{self.name} has two operands {name}: give each a name of its own")
        memory = Memory(self.code, name, view or shape, element)
        operands.append(_Operand(shape, memory, in_place))
        return memory

    def function(self) -> str:
        """Return the function's text: inputs and results in the order in which they were added."""
        arena, views = self._arena()
        results = [*self._results, *arena]
        tied = [each for each in self._inputs if each.in_place]
        operands = [*self._inputs, *results]
        rows = any(ROWS in each.shape for each in operands)
        layout = _layout(self._inputs, results, rows)
        size = "{%rows}" if rows else ""
        subspans = "".join(
            f"""
        {each.name} = hal.interface.binding.subspan layout({layout}) binding({i}) alignment(64) offset(%zero)
          : {each.memory.type}{size}"""
            for i, each in enumerate(operands)
        )
        number = f"""
        %count = hal.interface.constant.load layout({layout}) ordinal(0) : i32
        %rows = arith.index_castui %count : i32 to index
        %row = hal.interface.workgroup.id[1] : index"""
        return f"""
  hal.executable.source private @{self.name}_code {{
    hal.executable.export public @{self.name}_run ordinal(0) layout({layout})
        count(%device: !hal.device{", %rows: index" if rows else ""}) -> (index, index, index) {{
      %one = arith.constant 1 : index
      %count = arith.constant {self.workgroups} : index
      hal.return %count, {"%rows" if rows else "%one"}, %one : index, index, index
    }}
    builtin.module {{
      func.func @{self.name}_run() {{
        %zero = arith.constant 0 : index{number if rows else ""}{subspans}{views}
        %workgroup = hal.interface.workgroup.id[0] : index
{self.code.text()}
        return
      }}
    }}
  }}{self._caller(results, tied, rows=rows)}"""

    def _caller(self, results: Sequence[_Operand], tied: Sequence[_Operand], *, rows: bool) -> str:
        """The function that dispatches the executable, and returns the results without the scratch memory."""
        size = "{%rows}" if rows else ""
        arguments = ", ".join(["%rows: index"] * rows + [f"{each.name}: {each.tensor}" for each in self._inputs])
        passed = ", ".join(["%count"] * rows + [each.name for each in self._inputs])
        types = ", ".join(["i32"] * rows + [f"{each.tensor}{size}" for each in self._inputs])
        made = ", ".join([*(f"{each.tensor}{size}" for each in results), *(each.name for each in tied)])
        returned = ", ".join(each.tensor for each in [*self._results, *tied])
        places = [*range(len(self._results)), *range(len(results), len(results) + len(tied))]
        run = f"@{self.name}_code::@{self.name}_run{'[%rows]' if rows else ''}"
        return f"""
  func.func private @{self.name}({arguments}) -> ({returned}) {{
    {"%count = arith.index_castui %rows : index to i32" if rows else ""}
    %out:{len(results) + len(tied)} = flow.dispatch {run}({passed}) : ({types}) -> ({made})
    return {", ".join(f"%out#{i}" for i in places)} : {returned}
  }}"""

    def _arena(self) -> tuple[list[_Operand], str]:
        """One buffer for all scratch memory, as a dispatch has few bindings (32), and the views of its parts."""
        lines, end = [], 0
        for each in self._scratch:
            lines.append(f"""
        {each.name}_at = arith.constant {end} : index
        {each.name} = memref.view %scratch[{each.name}_at][] : memref<ARENAxi8> to {each.memory.type}""")
            end += -(-each.memory.size * size_of(each.memory.element) // CACHE_LINE) * CACHE_LINE
        arena = [_Operand((end,), Memory(self.code, "%scratch", (end,), "i8"))] if lines else []
        return arena, "".join(lines).replace("ARENA", str(end))


def _layout(inputs: Sequence[_Operand], results: Sequence[_Operand], rows: bool) -> str:
    kinds = ["storage_buffer" if each.in_place else "storage_buffer, ReadOnly" for each in inputs]
    kinds += ["storage_buffer"] * len(results)
    bindings = ", ".join(f"#hal.pipeline.binding<{kind}>" for kind in kinds)
    return f"#hal.pipeline.layout<constants = {int(rows)}, bindings = [{bindings}]>"
