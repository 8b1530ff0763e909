"""The tensors of a checkpoint: names, shapes, and which are allowed.

Our own names are one word each ("qkv", "down"), in a layer behind its number ("3.qkv").
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.parts import MixerKind
from workers.checkpoints.json_files import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,7})\.(.+)")
MTP_LAYERS = "model.mtp_layers."
"""Prefix of the tensors of heads for multi-token prediction, without which the model computes the same."""
_MTP_LAYER = re.compile(re.escape(MTP_LAYERS) + r"(0|[1-9][0-9]{0,7})\.(.+)")
_DERIVED = "self_attn.rotary_emb.inv_freq"
"""A tensor in old checkpoints that is not read: it follows from config.json."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model, and the tensors of the checkpoint that are stacked in it along the outputs."""

    name: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) of each tensor of the checkpoint."""
    offset: float = 0.0
    """Offset that is added to every value."""

    @property
    def matrix(self) -> bool:
        return len(self.sources[0][1]) == 2

    @property
    def rows(self) -> int:
        return sum(shape[0] for _, shape in self.sources)


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """List every tensor of the model; a tied head has the embedding's source."""
    embedding = (EMBEDDING, (config.vocab_size, config.hidden_size))
    yield Tensor("embedding", (embedding,))
    for number, layer in enumerate(config.plan):
        for part in _layer(config, layer.kind, experts=layer.experts):
            sources = tuple((f"model.layers.{number}.{name}", shape) for name, shape in part.sources)
            yield Tensor(f"{number}.{part.name}", sources, part.offset)
    if config.mtp:
        yield from mtp_tensors(config)
    yield Tensor("norm", ((f"{config.names.norm}.weight", (config.hidden_size,)),), config.norm_offset)
    yield Tensor("head", (embedding if config.tie_embeddings else ("lm_head.weight", embedding[1]),))


def mtp_tensors(config: ModelConfig) -> Iterator[Tensor]:
    """List the tensors of the first head for multi-token prediction: a layer behind those of the model, and what is
    before and after it."""
    prefix, number, hidden = f"{MTP_LAYERS}0.", config.layers, config.hidden_size
    own = [Tensor("input", (("input_proj.weight", (hidden, 2 * hidden)),))]
    for name, source in (("token", "token_layernorm"), ("hidden", "hidden_layernorm"), ("final", "final_layernorm")):
        own.append(Tensor(f"norm_{name}", ((f"{source}.weight", (hidden,)),), config.norm_offset))
    for part in (*own, *_layer(config, "attention", experts=False)):
        sources = tuple((prefix + name, shape) for name, shape in part.sources)
        yield Tensor(f"{number}.{part.name}", sources, part.offset)


def has_mtp(names: Container[str], config: ModelConfig) -> bool:
    """Return whether a checkpoint has all tensors of its head for multi-token prediction."""
    sources = (source for tensor in mtp_tensors(config) for source, _ in tensor.sources)
    return config.mtp_layers > 0 and all(source in names for source in sources)


def _layer(config: ModelConfig, kind: MixerKind, *, experts: bool) -> Iterator[Tensor]:
    """List the tensors of one layer, named within it."""
    yield from _norms(config)
    yield from _MIXERS[kind](config)
    yield from _experts(config) if experts else _mlp(config)


def _attention(config: ModelConfig) -> Iterator[Tensor]:
    hidden = config.hidden_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = _stacked(config.names.qkv, (queries * (1 + config.attention_gate), keys, keys))
    yield Tensor("qkv", tuple((f"{name}.weight", (size, hidden)) for name, size in sizes))
    if config.qkv_bias:
        yield Tensor("qkv_bias", tuple((f"{name}.bias", (size,)) for name, size in sizes))
    if config.head_norm is not None:
        shapes = (queries, keys) if config.head_norm == "all" else (config.head_dim,) * 2
        for x, name, size in zip("qk", config.names.head_norms, shapes, strict=True):
            yield Tensor(f"{x}_norm", ((f"{name}.weight", (size,)),), config.norm_offset)
    yield Tensor("o", ((f"{config.names.o}.weight", (hidden, queries)),))
    if config.o_bias:
        yield Tensor("o_bias", ((f"{config.names.o}.bias", (hidden,)),))


def _convolution(config: ModelConfig) -> Iterator[Tensor]:
    """List the projections to B, C and x, one after the other, the weights of the taps, the oldest row's first, and the
    projection of the output."""
    hidden, kind = config.hidden_size, config.convolution
    assert kind is not None  # a layer is a convolution only where the model has them
    yield Tensor("conv_in", (("conv.in_proj.weight", (3 * kind.channels, hidden)),))
    yield Tensor("conv_taps", (("conv.conv.weight", (kind.channels, 1, kind.taps)),))
    yield Tensor("conv_out", (("conv.out_proj.weight", (hidden, kind.channels)),))


def _gated_delta(config: ModelConfig) -> Iterator[Tensor]:
    """List the projections to queries, keys and values and to the output's gate, those to the update's strength and to
    the decay of each head, the convolution's taps, the constants of the decay, and the norm and projection of the
    output."""
    hidden, kind = config.hidden_size, config.delta
    assert kind is not None  # a layer is a gated delta network only where the model has them
    name, heads = "linear_attn.", kind.value_heads
    sizes = (("in_proj_qkv", kind.channels), ("in_proj_z", kind.values))
    yield Tensor("delta_in", tuple((f"{name}{part}.weight", (size, hidden)) for part, size in sizes))
    yield Tensor("delta_gates", tuple((f"{name}in_proj_{x}.weight", (heads, hidden)) for x in "ba"))
    yield Tensor("delta_taps", ((f"{name}conv1d.weight", (kind.channels, 1, kind.taps)),))
    yield Tensor("delta_decay", ((f"{name}A_log", (heads,)),))
    yield Tensor("delta_bias", ((f"{name}dt_bias", (heads,)),))
    yield Tensor("delta_norm", ((f"{name}norm.weight", (kind.value_dim,)),))
    yield Tensor("delta_out", ((f"{name}out_proj.weight", (hidden, kind.values)),))


_MIXERS: Mapping[MixerKind, Callable[[ModelConfig], Iterator[Tensor]]] = {
    "attention": _attention,
    "convolution": _convolution,
    "gated_delta": _gated_delta,
}


def _norms(config: ModelConfig) -> Iterator[Tensor]:
    norms = config.norms
    for name, source in (
        ("norm_attention", norms.before_attention),
        ("norm_attention_out", norms.after_attention),
        ("norm_mlp", norms.before_mlp),
        ("norm_mlp_out", norms.after_mlp),
    ):
        if source is not None:
            yield Tensor(name, ((f"{source}.weight", (config.hidden_size,)),), config.norm_offset)


def _mlp(config: ModelConfig) -> Iterator[Tensor]:
    sizes = _stacked(config.names.gate_up, (config.ffn, config.ffn))
    yield Tensor("gate_up", tuple((f"{name}.weight", (size, config.hidden_size)) for name, size in sizes))
    yield Tensor("down", ((f"{config.names.down}.weight", (config.hidden_size, config.ffn)),))


def _experts(config: ModelConfig) -> Iterator[Tensor]:
    """List the router, and the matrices of all experts, stacked expert after expert."""
    experts, names, hidden = config.experts, config.names.experts, config.hidden_size
    assert experts is not None  # a layer has experts only where the model has
    every = range(experts.count)
    up = ((name.format(e) + ".weight", (experts.ffn, hidden)) for e in every for name in (names.gate, names.up))
    yield Tensor("router", ((f"{names.router}.weight", (experts.count, hidden)),))
    yield Tensor("experts_gate_up", tuple(up))
    yield Tensor("experts_down", tuple((names.down.format(e) + ".weight", (hidden, experts.ffn)) for e in every))


def _stacked(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """Pair each name with its outputs; a single name holds them all."""
    return [(names[0], sum(sizes))] if len(names) == 1 else list(zip(names, sizes, strict=True))


def parameter_count(config: ModelConfig) -> int:
    """Count the parameters of a model; a tied matrix counts as embedding and as head, because it is read as both."""
    return sum(math.prod(shape) for tensor in tensors(config) for _, shape in tensor.sources)


def check_tensors(
    names: Iterable[str],
    config: ModelConfig,
    path: Path,
    adds_nothing: Callable[[str], bool] = lambda name: False,
) -> None:
    """Refuse tensors that a model of this config does not read, except those that `adds_nothing`.

    A model without such a tensor would be another model. Raises `CheckpointError` with its name.
    """
    # A head beside tied embeddings is a copy of them, in transformers as well.
    others = FAMILIES[config.family].other_tensors
    known = {"lm_head.weight"} | {source for tensor in tensors(config) for source, _ in tensor.sources}
    for name in names:
        match = _LAYER.fullmatch(name)
        if name in known or (match and int(match[1]) < config.layers and match[2] == _DERIVED):
            continue
        head = _MTP_LAYER.fullmatch(name)
        if adds_nothing(name) or name.startswith(others) or (head and int(head[1]) < config.mtp_layers):
            continue
        raise CheckpointError(path, name, f"the tensor is not part of a {config.family} model as config.json has it")
