"""The architecture of a vision tower: one description for all families and both backends.

A tower is a transformer encoder over patches. What families do differently with places of patches is computed on the
host: the order of patches (`ImagePatches`), what is added to their embeddings, and the angles of RoPE. So a tower needs
neither the shape of the image nor reshapes of its grid, and every group of `group` rows gives one token.

Parameters have these names, with matrices [outputs, inputs] as in torch; those of biases only where the checkpoint has
them (`biases` of the struct):

- `patch.weight` [hidden, patch_values], `patch.bias` (if `biases` or `patch_bias`)
- `values_norm`, `patch_norm` and `placed_norm` (where the description has them), each with `.weight` and `.bias`
- `layers.N.` with `norm1`, `q`, `k`, `v`, `o`, `norm2`, `up`, `gate` (if `gated`), `down`, each with `.weight` and
  `.bias`; `q_norm.weight`, `k_norm.weight` (if `qk_norm`); `post1.weight`, `post2.weight` (if `sandwich`)
- `norm.weight`, `norm.bias` (if `last_norm`)
- `merger.norm`, `merger.mix.N` and `merger.mix.N.norm`, `merger.up`, `merger.gate` (if `gated`), `merger.down`, and the
  same for each tap as `taps.N.norm` and so on, with N from 0
- `extra.weight` [hidden], which only the host reads: the embedding of the row that is no patch (if `extra`)
- `standard.bias`, `standard.scale` [hidden] (if `standardize`)
- `newline.weight` [output], which only the host reads: the embedding behind each row of a packed grid (if `newline`)
- `positions.weight`, which only the host reads: [rows * columns, hidden], or for `axes` [2, rows, hidden], the table of
  rows and that of columns

`workers.vision.parameters` lists them with their shapes. What a checkpoint lacks has values that change nothing:
`patch.bias` (if `biases`) of zeros, and the weights of RMS norms of ones.

The lanes of queries and keys are ordered so that the rotation of lane i is with lane i + head_dim / 2, by the angle
i of `angles` [patches, head_dim / 2]: weights of families with another order are permuted when they are read.
"""

from dataclasses import dataclass
from typing import Literal

from workers.errors import LoadRefused

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Norm = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True)
class Mix:
    """A linear layer of a merger between the rows of a group and its last layers."""

    outputs: int
    bias: bool = False
    norm: Norm | None = None
    """The norm of the outputs."""
    activation: Activation | None = None
    """Applied behind the norm."""


@dataclass(frozen=True, slots=True)
class Merger:
    """Makes one token of a group of patches: the rows side by side, or their mean, then a norm, linear layers, an
    activation and a last linear layer."""

    pooling: Literal["concat", "mean"]
    norm: Norm | None
    """None for no norm. `rms` without a weight has weights of 1."""
    norm_each: bool
    """The norm is that of each patch, before the rows are put side by side; otherwise of what is made of the group."""
    eps: float
    inner: int
    """Outputs of the first linear layer; 0 if there is only the second one."""
    activation: Activation | None
    biases: bool
    scale: float = 1.0
    """Multiplies what is made of the group, before the norm: Gemma 4's square root of the hidden size."""
    mixes: tuple[Mix, ...] = ()
    """Linear layers before the first one: Mistral 3 and GLM-V. Their norms have `eps` as well."""
    gated: bool = False
    """The last two linear layers are an MLP with a gate, which the activation is applied to: GLM-V."""


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The sizes and parts of a vision tower."""

    family: str
    """The `model_type` of the whole checkpoint: it decides on preprocessing and places of tokens."""
    patch_values: int
    """Numbers of a patch."""
    layers: int
    hidden: int
    heads: int
    head_dim: int
    mlp: int
    norm: Norm
    eps: float
    activation: Activation
    gated: bool
    """The MLP has a gate, which the activation is applied to."""
    biases: bool
    """Patches, attention and MLP have biases."""
    scale: float
    """Multiplies the products of queries and keys."""
    group: int
    """Patches of one token."""
    merger: Merger
    output: int
    """The hidden size of the language model."""
    values_norm: Norm | None = None
    """There is a norm of the numbers of a patch, before they are embedded: Gemma 4 without a tower."""
    patch_norm: Norm | None = None
    """There is a norm of the embeddings of patches, before positions are added: GLM-V, Gemma 4 without a tower."""
    placed_norm: Norm | None = None
    """There is a norm behind the positions: Pixtral, CLIP, Gemma 4 without a tower. All three have `eps`."""
    patch_bias: bool = False
    """Patches have a bias where `biases` is not set."""
    extra: bool = False
    """A row that is no patch is computed behind the patches; they attend to it, and it makes no token: the class token
    of CLIP and InternViT, with the position 0 of the table."""
    qk_norm: bool = False
    """Queries and keys have an RMS norm of each head: Gemma 4, GLM-OCR."""
    value_norm: bool = False
    """Values have an RMS norm of each head without a weight: Gemma 4."""
    sandwich: bool = False
    """There is an RMS norm behind attention and MLP as well: Gemma 4."""
    rope_theta: float = 0.0
    """0 for no RoPE. Otherwise the first half of the angles is of the row of the patch, the second of its column; base
    and angles as `workers.vision.positions` computes them."""
    rope_alternates: bool = False
    """Rows and columns have every other frequency of all of a head's: Pixtral. Otherwise both have the same ones."""
    columns_first: bool = False
    """The first half of the angles is of the column, and the second of the row: Gemma 4."""
    clipped: bool = False
    """Inputs and outputs of the matrices q, k, v, o, up, gate and down are clipped to ranges: Gemma 4 E2B and E4B. Each
    has `layers.N.MATRIX.clip` [4]: the least and the greatest input, the least and the greatest output."""
    table: tuple[int, int] | None = None
    """Rows and columns of the table of positions; None for no table."""
    table_kind: Literal["fixed", "interpolated", "bilinear", "resized", "bicubic", "axes"] = "fixed"
    """`fixed`: one position for each place (SigLIP); `interpolated`: bilinear, with the corners aligned (Qwen3-VL);
    `bilinear`: without (PaddleOCR-VL); `resized`: antialiased (SigLIP 2); `bicubic` (GLM-V); `axes`: the sum of one for
    the row and one for the column (Gemma 4)."""
    full_layers: frozenset[int] | None = None
    """The layers that attend to the whole image, the others within windows; None for all."""
    last_norm: bool = False
    """There is a norm after the last layer, before the merger."""
    standardize: bool = False
    newline: bool = False
    """Images are packed (`workers.vision.packing`), with an embedding behind each row of the grid: LLaVA-OneVision."""
    taps: tuple[int, ...] = ()
    """The layers whose outputs are merged as well, for the deep stack (Qwen3-VL): they are added to the outputs of as
    many first layers of the language model, in the rows of the image."""
    tap_merger: Merger | None = None
    bidirectional: Literal["none", "all", "windowed"] = "none"
    """The layers of the language model in which tokens of one image attend to each other in both directions: all of
    them (Gemma 3), or those with a window (Gemma 4)."""
    mrope: tuple[int, ...] = ()
    """Numbers of angles of the language model's RoPE that belong to time, row and column; empty if it counts tokens."""
    mrope_interleaved: bool = False
    """The angles of the three alternate (Qwen3-VL, Qwen3.5), or lie one after the other (Qwen2-VL, Qwen2.5-VL)."""

    @property
    def tiles(self) -> bool:
        """An image consists of tiles that attend to themselves alone: the windows of all layers."""
        return self.full_layers is not None and not self.full_layers

    @property
    def width(self) -> int:
        """Numbers of a row of embeddings: see `VisionEncoder.width`."""
        return self.output * (1 + len(self.taps))

    def choose_width(self, given: int) -> int:
        """Return the width of rows in prompts, beside those that requests give with `given` numbers; 0 if they give
        none. Raises `LoadRefused` if these have another width."""
        if given not in (0, self.width):
            raise LoadRefused(
                f"embeddings: rows of {given} numbers, those of images have {self.width} in {self.family}: leave it "
                "out, or leave out its vision tower by --no-vision"
            )
        return self.width
