"""A dispatch over tensors, for kernels so small that nothing is gained by choosing where their results lie."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.iree.kernels.ir.builder import Code, Value

PORT = "!iree_tensor_ext.dispatch.tensor"


@dataclass(slots=True)
class Dispatch:
    """One function with one dispatch in it; its body is built through `code`, of the tensors of `take` and `give`."""

    name: str
    workgroups: int
    code: Code = field(default_factory=Code)
    _inputs: list[Value] = field(default_factory=list)
    _outputs: list[Value] = field(default_factory=list)

    def workgroup(self) -> str:
        return self.code.let("flow.dispatch.workgroup.id[0] : index")

    def take(self, shape: tuple[int, ...], element: str) -> Value:
        """The next input, to be read."""
        port = Value(f"%i{len(self._inputs)}", shape, element)
        self._inputs.append(port)
        name = self.code.let(
            f"iree_tensor_ext.dispatch.tensor.load {port.name}, {_range(['0'] * len(shape), shape)}"
            f" : {self._port(port)} -> {port.type}"
        )
        return Value(name, shape, element)

    def give(self, shape: tuple[int, ...], element: str) -> Value:
        """The next result, to be stored to part by part."""
        port = Value(f"%o{len(self._outputs)}", shape, element)
        self._outputs.append(port)
        return port

    def store(self, part: Value, target: Value, at: Sequence[str]) -> None:
        """Put a tensor into a result."""
        self.code.do(
            f"iree_tensor_ext.dispatch.tensor.store {part.name}, {target.name}, {_range(at, part.shape)}"
            f" : {part.type} -> {self._port(target)}"
        )

    def _port(self, value: Value) -> str:
        return f"{PORT}<{'writeonly' if value in self._outputs else 'readonly'}:{value.type}>"

    def function(self) -> str:
        """The function's text: inputs in the order in which they were taken, results as they were given."""
        outs = ", ".join(value.type for value in self._outputs)
        ports = ", ".join(f"{value.name}: {self._port(value)}" for value in (*self._inputs, *self._outputs))
        names = ", ".join(f"%a{i}" for i in range(len(self._inputs)))
        types = ", ".join(value.type for value in self._inputs)
        arguments = ", ".join(f"%a{i}: {value.type}" for i, value in enumerate(self._inputs))
        count = len(self._outputs)
        returned = ", ".join(f"%r#{i}" for i in range(count)) if count > 1 else "%r"
        return f"""
  func.func private @{self.name}({arguments}) -> ({outs}) {{
    %r{f":{count}" if count > 1 else ""} = flow.dispatch.workgroups({names}) : ({types}) -> ({outs}) =
        ({ports}) {{
{self.code.text()}
      flow.return
    }} count() -> (index, index, index) {{
      %x = arith.constant {self.workgroups} : index
      %y = arith.constant 1 : index
      %z = arith.constant 1 : index
      flow.return %x, %y, %z : index, index, index
    }}
    return {returned} : {outs}
  }}"""


def _range(at: Sequence[str], sizes: Sequence[int]) -> str:
    ones = ", ".join("1" for _ in sizes)
    return f"offsets = [{', '.join(at)}], sizes = [{', '.join(map(str, sizes))}], strides = [{ones}]"
