"""Lines of MLIR text in SSA form, with the names of their values."""


class MlirLines:
    """The body of one workgroup. Constants are made once and stand before everything else."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[str, str] = {}
        self._count = 0

    def name(self) -> str:
        """Return a new name for a value."""
        self._count += 1
        return f"%v{self._count}"

    def let(self, expression: str) -> str:
        """Append an operation with one result and return the result's name."""
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        """Append an operation without results, or an end of a region."""
        self.lines.append(statement)

    def constant_name(self, text: str) -> str:
        """Return the name of a constant that MLIR writes so: `0 : index`."""
        if text not in self._constants:
            self._constants[text] = self.name()
        return self._constants[text]

    def text(self) -> str:
        heads = [f"{name} = arith.constant {value}" for value, name in self._constants.items()]
        return "\n".join([*heads, *self.lines])
