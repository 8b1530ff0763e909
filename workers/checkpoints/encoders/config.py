"""The description of an encoder, from config.json: all families have one form."""

from dataclasses import dataclass
from typing import ClassVar

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.json_files import CheckpointError
from workers.precision import Quantize, WeightDtype


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer of an encoder."""

    rope: int | None = None
    """The index of its rotary embedding; None without one."""
    window: int | None = None
    """Tokens before and after its own that a token attends to; None is all of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder: every token attends to the whole sequence, or to those near it."""

    family: str
    """`model_type`."""
    architecture: str
    """The class in transformers; empty if none is stated."""
    vocab_size: int
    hidden_size: int
    ffn: int
    heads: int
    kv_heads: int = 0
    """Heads of keys and values; 0 is as many as of queries."""
    lanes: int = 0
    """Lanes of a head; 0 is the hidden size divided by the heads."""
    plan: tuple[EncoderLayer, ...]
    ropes: tuple[Rope, ...] = ()
    activation: Activation = "gelu"
    gated: bool = False
    """The MLP is down(act(gate(x)) * up(x)), otherwise down(act(up(x)))."""
    pre_norm: bool = False
    """Norms are before attention and MLP, with one behind the last layer, and none before the first attention.
    Otherwise each is behind the residual sum, as in the Transformer's paper (https://arxiv.org/abs/1706.03762)."""
    eps: float = 1e-12
    norm_bias: bool = True
    rms: bool = False
    """Norms are RMS norms, otherwise LayerNorms."""
    norm_offset: float = 0.0
    """Added to the stored weights of norms."""
    norms_around: bool = False
    """Norms are behind attention and MLP as well, before the residual sum."""
    head_norms: bool = False
    """Queries and keys have RMS norms, with weights that heads share."""
    embedding_norm: bool = True
    embedding_scale: float = 1.0
    """Factor of embeddings, rounded to the type of the weights."""
    score_scale: float = 0.0
    """Factor of the products of queries and keys; 0 is the inverse root of a head's lanes."""
    qkv_bias: bool = True
    attention_out_bias: bool = True
    up_bias: bool = True
    down_bias: bool = True
    table_positions: int = 0
    """Rows of the table of learned positions; 0 without one."""
    position_offset: int = 0
    """The row of the first token's position."""
    token_types: int = 0
    """Segments that have an embedding; 0 without any."""
    max_positions: int
    """Tokens of the longest sequence."""
    dtype: WeightDtype
    mtp: ClassVar[bool] = False
    """As in `ModelConfig`: encoders have no head for multi-token prediction."""
    labels: int = 0
    """Scores of a sequence classifier, which is then the class in transformers; 0 for other classes."""

    @property
    def head_dim(self) -> int:
        return self.lanes or self.hidden_size // self.heads

    @property
    def kv(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def query_width(self) -> int:
        """Values of the queries of all heads."""
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Values of queries, keys and values of all heads."""
        return self.query_width + 2 * self.kv * self.head_dim

    @property
    def attention_scale(self) -> float:
        """Factor of the products of queries and keys."""
        plain: float = self.head_dim**-0.5
        return self.score_scale or plain

    def choose_context(self, requested: int) -> int:
        """Return the tokens of the longest sequence that is taken: `requested`, or for 0 what the model was trained
        for. Raises `CheckpointError` when the model has fewer positions."""
        if requested > self.max_positions:
            problem = f"is {self.max_positions}, less than the context of {requested} tokens: lower --context"
            raise CheckpointError("config.json", "max_position_embeddings", problem)
        return requested or self.max_positions

    def choose_quantization(self, requested: Quantize) -> Quantize:
        """Return the requested quantization: no encoder that is read is quantized already."""
        return requested
