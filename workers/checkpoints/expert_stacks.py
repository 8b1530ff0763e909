"""Tensors that hold the matrices of all experts of a layer, and the names of the single matrices."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAX_EXPERTS = 4096
"""Experts in one stack: each gets a name."""
_MLX = re.compile(r"(.+\.)(?:switch_mlp|experts\.switch_glu)\.(gate_proj|up_proj|down_proj)\.weight")
_HALVES = re.compile(r"(.+\.)(?:experts\.(gate_up_proj|down_proj)|(input_linear|output_linear)\.weight)")
_MIXTRAL: Mapping[str, str] = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """The place of one expert's matrix in a stack."""

    expert: int
    half: int | None = None
    """The half of the rows in a stack of gates and up matrices; None where the matrix is all rows."""

    def rows(self, count: int) -> slice:
        """Return its rows among those that a stack has of each expert."""
        if self.half is None:
            return slice(None)
        return slice(self.half * (count // 2), (self.half + 1) * (count // 2))


def is_stack(tensor: str) -> bool:
    """Return whether the name of a tensor is that of a stack, if it has three dimensions."""
    return any(_parts(tensor))


def unstacked(tensor: str, experts: int) -> Iterator[tuple[str, ExpertMatrix]]:
    """List the matrices in a stack of `experts`, with the names that single matrices have in checkpoints.

    Stacks are those of MLX (`mlp.switch_mlp.up_proj.weight`), of transformers 5 (`mlp.experts.gate_up_proj`), and of
    Granite (`block_sparse_moe.input_linear.weight`); single matrices are called `mlp.experts.3.up_proj.weight`, or
    `w1` to `w3` in `block_sparse_moe`.
    """
    for expert in range(experts):
        for block, part, half in _parts(tensor):
            name = _MIXTRAL[part] if block.endswith(".block_sparse_moe.") else part
            yield f"{block}experts.{expert}.{name}.weight", ExpertMatrix(expert, half)


def _parts(tensor: str) -> Iterator[tuple[str, str, int | None]]:
    """List the kinds of matrices in a stack: the block of the layer, the name, and the half."""
    if (match := _MLX.fullmatch(tensor)) is not None:
        yield match[1], match[2], None
    elif (match := _HALVES.fullmatch(tensor)) is not None:
        if (match[2] or match[3]) in ("down_proj", "output_linear"):
            yield match[1], "down_proj", None
        else:
            yield match[1], "gate_proj", 0
            yield match[1], "up_proj", 1
