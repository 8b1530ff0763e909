"""Tensors that hold the matrices of all experts of a layer, and the names of the single matrices."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

MAX_EXPERTS = 4096
"""Experts in one stack: each gets a name."""
StackLayout = Literal["halves", "transposed", "interleaved"]
"""The order of gates and up matrices in one stack: one behind the other, or, in gpt-oss, row by row. Plain stacks of
the latter are transposed, and have biases; those of Qwen3-VL are halves that are transposed."""
MXFP4 = ("_blocks", "_scales")
"""Endings of stacks in MXFP4: codes [experts, outputs, groups, 16] and scales [experts, outputs, groups]."""
_MLX = re.compile(r"(.+\.)(?:switch_mlp|experts\.switch_glu)\.(gate_proj|up_proj|down_proj|fc1|fc2)\.weight")
_UNGATED: Mapping[str, str] = {"fc1": "up_proj", "fc2": "down_proj"}
"""MLX's names of the matrices of experts without a gate."""
_HALVES = re.compile(
    r"(.+\.)(?:experts\.(gate_up_proj|up_proj|down_proj)|(?<=block_sparse_moe\.)(input_linear|output_linear)\.weight)"
)
_INTERLEAVED = re.compile(
    r"(.+\.)experts\.(?:(gate_up_proj|down_proj)(_bias|_blocks|_scales)?|(gate_proj|up_proj|down_proj)\.(weight|bias))"
)
_MIXTRAL: Mapping[str, str] = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """The place of one expert's matrix or bias in a stack."""

    expert: int
    half: int | None = None
    """The half of the rows in a stack of gates and up matrices; None where the matrix is all rows."""
    interleaved: bool = False
    """The half is every other row."""
    transposed: bool = False
    """Matrices are [inputs, outputs] in the stack."""

    def rows(self, count: int) -> slice:
        """Return its rows among those that a stack has of each expert."""
        if self.half is None:
            return slice(None)
        if self.interleaved:
            return slice(self.half, None, 2)
        return slice(self.half * (count // 2), (self.half + 1) * (count // 2))

    def take(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return its rows of what a stack has of its expert."""
        if self.transposed:
            matrix = matrix.T
        return matrix[self.rows(len(matrix))]

    def read(self, stack: Any) -> NDArray[Any]:
        """Read its rows from a stack, a slice of safetensors."""
        if self.half is None or self.interleaved or self.transposed:
            return self.take(stack[self.expert])
        rows: NDArray[Any] = stack[self.expert, self.rows(stack.get_shape()[1])]
        return rows

    def shape(self, stack: tuple[int, ...]) -> tuple[int, ...]:
        """Return its shape in a stack of this shape."""
        outputs, *inner = stack[:0:-1] if self.transposed else stack[1:]
        return (len(range(outputs)[self.rows(outputs)]), *inner)


def is_stack(tensor: str, layout: StackLayout = "halves") -> bool:
    """Return whether the name of a tensor is that of a stack, if it has as many dimensions."""
    return any(_parts(tensor, layout))


def stack_rank(tensor: str, layout: StackLayout = "halves") -> int | None:
    """Return the dimensions of a stack of plain numbers, or of MLX's integers; None where the name is of none."""
    parts = [] if tensor.endswith(MXFP4) else list(_parts(tensor, layout))
    if not parts:
        return None
    return 2 if parts[0][1].endswith(".bias") else 3


def unstacked(tensor: str, experts: int, layout: StackLayout = "halves") -> Iterator[tuple[str, ExpertMatrix]]:
    """List the matrices in a stack of `experts`, with the names that single matrices have in checkpoints.

    Stacks are those of MLX (`mlp.switch_mlp.up_proj.weight`, or `fc1` and `fc2` where experts have no gate), of
    transformers 5 (`mlp.experts.gate_up_proj`, or `up_proj`), and of Granite (`block_sparse_moe.input_linear.weight`);
    single matrices are called `mlp.experts.3.up_proj.weight`, or `w1` to `w3` in `block_sparse_moe` and `feed_forward`.
    In gpt-oss, biases are stacked as well (`mlp.experts.gate_up_proj_bias`), and the stacks of MLX are
    `mlp.experts.up_proj.weight`.
    """
    for expert in range(experts):
        for block, part, half in _parts(tensor, layout):
            interleaved = layout == "interleaved"
            plain = part.endswith(".weight") and not tensor.endswith((".weight", *MXFP4))
            transposed = layout != "halves" and plain
            yield f"{block}experts.{expert}.{part}", ExpertMatrix(expert, half, interleaved, transposed)


def _parts(tensor: str, layout: StackLayout) -> Iterator[tuple[str, str, int | None]]:
    """List the kinds of matrices in a stack: the block of the layer, the name within the expert, and the half."""
    if layout == "interleaved":
        yield from _interleaved_parts(tensor)
    elif (match := _MLX.fullmatch(tensor)) is not None:
        yield match[1], _single(match[1], _UNGATED.get(match[2], match[2])), None
    elif (match := _HALVES.fullmatch(tensor)) is not None:
        if (match[2] or match[3]) in ("down_proj", "output_linear"):
            yield match[1], _single(match[1], "down_proj"), None
        elif match[2] == "up_proj":
            yield match[1], _single(match[1], "up_proj"), None
        else:
            yield match[1], _single(match[1], "gate_proj"), 0
            yield match[1], _single(match[1], "up_proj"), 1


def _single(block: str, part: str) -> str:
    return f"{_MIXTRAL[part] if block.endswith(('.block_sparse_moe.', '.feed_forward.')) else part}.weight"


def _interleaved_parts(tensor: str) -> Iterator[tuple[str, str, int | None]]:
    match = _INTERLEAVED.fullmatch(tensor)
    if match is None:
        return
    kind = match[5] or ("bias" if match[3] == "_bias" else "weight")
    if match[2] == "gate_up_proj":
        yield match[1], f"gate_proj.{kind}", 0
        yield match[1], f"up_proj.{kind}", 1
    else:
        yield match[1], f"{match[2] or match[4]}.{kind}", None


def stack_layout(model_type: object, *, transposed: bool = False) -> StackLayout:
    """Return the layout of the stacks in checkpoints of a `model_type`, in a class that has them `transposed` or not
    (`Wrapper.transposes_experts`)."""
    return "interleaved" if model_type == "gpt_oss" else "transposed" if transposed else "halves"
