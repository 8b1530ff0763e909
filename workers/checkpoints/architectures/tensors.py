"""The tensors of a checkpoint: names, shapes, and which are allowed.

Our own names are one word each ("qkv", "down"), in a layer behind its number ("3.qkv").
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.parts import LatentAttention, LayerConfig, MixerKind, PerLayerEmbedding
from workers.checkpoints.architectures.row_order import HeadPart, LatentOrder, PartOrder, RowOrder, RowsOrder
from workers.checkpoints.json_files import CheckpointError

_NUMBERED = re.compile(r"(0|[1-9][0-9]{0,7})\.(.+)")
MTP_LAYERS = "model.mtp_layers."
"""Prefix of the tensors of heads for multi-token prediction, without which the model computes the same."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model, and the tensors of the checkpoint that are stacked in it along the outputs."""

    name: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) of each tensor of the checkpoint."""
    offset: float = 0.0
    """Offset that is added to every value."""
    orders: tuple[RowsOrder | None, ...] = ()
    """The order in which the rows of each source are read; empty for the stored order of all."""
    flat: bool = False
    """A vector, whatever the shape of its sources."""
    part: HeadPart | None = None
    """The part of its only source that is read; None is all of it."""

    @property
    def matrix(self) -> bool:
        return len(self.sources[0][1]) == 2 and not self.flat

    @property
    def rows(self) -> int:
        if self.part is not None:
            return self.part.shape(self.sources[0][1])[0]
        return sum(math.prod(shape) if self.flat else shape[0] for _, shape in self.sources)


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """List every tensor of the model; a tied head has the embedding's source."""
    names, hidden = config.names, config.hidden_size
    embedding = (f"{names.embedding}.weight", (config.vocab_size, hidden))
    yield Tensor("embedding", (embedding,))
    if config.per_layer is not None:
        yield from _per_layer_model(config, config.per_layer)
    for number, layer in enumerate(config.plan):
        for part in _layer(config, number, layer):
            sources = tuple((f"{names.layers}{number}.{name}", shape) for name, shape in part.sources)
            yield replace(part, name=f"{number}.{part.name}", sources=sources)
    if config.mtp:
        yield from mtp_tensors(config)
    yield from _norm(config, "norm", names.norm)
    yield Tensor("head", (embedding if config.tie_embeddings else (f"{names.head}.weight", embedding[1]),))
    if config.head_bias:
        yield Tensor("head_bias", ((f"{names.head}.bias", (config.vocab_size,)),))


def stored_parameter_count(config: ModelConfig) -> int:
    """Count the parameters that the checkpoint stores; a tied matrix counts once."""
    sources = {name: math.prod(shape) for tensor in tensors(config) for name, shape in tensor.sources}
    return sum(sources.values())


def mtp_tensors(config: ModelConfig) -> Iterator[Tensor]:
    """List the tensors of the first head for multi-token prediction: a layer behind those of the model, and what is
    before and after it."""
    names, number, hidden = config.mtp_names, config.layers, config.hidden_size
    if names is None:
        return
    own = [Tensor("input", ((f"{names.input}.weight", (hidden, 2 * hidden)),))]
    for name, source in (("token", names.token), ("hidden", names.hidden), ("final", names.final)):
        own.append(Tensor(f"norm_{name}", ((f"{source}.weight", (hidden,)),), config.norm_offset))
    layer = _layer(config, number, LayerConfig(experts=config.experts is not None))
    for prefix, parts in ((names.own, own), (names.layer, layer)):
        for part in parts:
            sources = tuple((prefix + source, shape) for source, shape in part.sources)
            yield replace(part, name=f"{number}.{part.name}", sources=sources)


def has_mtp(names: Container[str], config: ModelConfig) -> bool:
    """Return whether a checkpoint has all tensors of its head for multi-token prediction."""
    if config.mtp_names is None or not (config.mtp_layers or config.mtp_names.by_presence):
        return False
    return all(source in names for tensor in mtp_tensors(config) for source, _ in tensor.sources)


def _layer(config: ModelConfig, number: int, layer: LayerConfig) -> Iterator[Tensor]:
    """List the tensors of one layer, named within it."""
    yield from _norms(config)
    yield from _attention(config, number, layer) if layer.kind == "attention" else _MIXERS[layer.kind](config)
    if layer.mlp and layer.experts:
        yield from _experts(config)
    if layer.mlp and (not layer.experts or config.experts_beside_mlp):
        yield from _mlp(config, layer)
    if config.per_layer is not None:
        yield from _per_layer(config, config.per_layer)
    if config.layer_scalars:
        yield Tensor("layer_scalar", ((config.names.layer_scalar, (1,)),))


def _attention(config: ModelConfig, number: int, layer: LayerConfig) -> Iterator[Tensor]:
    """List the tensors of attention. A layer that reads another one's keys and values has queries alone, and one whose
    keys are values has no projection of these."""
    if config.latent is not None:
        yield from _latent_attention(config, config.latent)
        return
    hidden, names, shape = config.hidden_size, config.names, config.kv_shape(number)
    queries, reads = config.heads * shape.key_width, config.kv_owner(number) != number
    parts = [queries * (1 + config.attention_gate), shape.heads * shape.key_width, shape.heads * shape.value_width]
    parts = parts[:2] if layer.keys_as_values else parts
    sizes, orders = _stacked(names.qkv[: len(parts)], tuple(parts)), qkv_orders(config, number)
    if reads:
        sizes, orders = [(names.qkv[0], parts[0])], orders[:1]
    yield Tensor("qkv", tuple((f"{name}.weight", (size, hidden)) for name, size in sizes), orders=orders)
    if config.qkv_bias:
        yield Tensor("qkv_bias", tuple((f"{name}.bias", (size,)) for name, size in sizes), orders=orders)
    if config.head_norm is not None:
        yield from _head_norms(config, number)
    yield Tensor("o", ((f"{names.o}.weight", (hidden, config.heads * shape.value_width)),))
    if config.o_bias:
        yield Tensor("o_bias", ((f"{names.o}.bias", (hidden,)),))
    if config.sinks:
        yield Tensor("sinks", ((names.sinks, (config.heads,)),))


def _latent_attention(config: ModelConfig, kind: LatentAttention) -> Iterator[Tensor]:
    """List the projections to the queries, or to their latent, and to that of keys and values; the norms of latents;
    the projection to the queries; the matrices of each head's keys, transposed, and values; and the output's."""
    name, hidden, heads = "self_attn.", config.hidden_size, config.heads
    queries, of_queries = heads * kind.query, LatentOrder(heads, kind.passed, kind.rotated, config.interleaved_rope)
    of_latent = LatentOrder(1, kind.rank, kind.rotated, config.interleaved_rope)
    first: tuple[str, tuple[int, ...]] = (f"{name}q_proj.weight", (queries, hidden))
    if kind.query_rank is not None:
        first = (f"{name}q_a_proj.weight", (kind.query_rank, hidden))
    latent = (f"{name}kv_a_proj_with_mqa.weight", (kind.rank + kind.rotated, hidden))
    yield Tensor("latent_in", (first, latent), orders=(of_queries if kind.query_rank is None else None, of_latent))
    if kind.query_rank is not None:
        yield Tensor("latent_query_norm", ((f"{name}q_a_layernorm.weight", (kind.query_rank,)),))
        stacked = (f"{name}q_b_proj.weight", (queries, kind.query_rank))
        yield Tensor("latent_queries", (stacked,), orders=(of_queries,))
    yield Tensor("latent_norm", ((f"{name}kv_a_layernorm.weight", (kind.rank,)),))
    if kind.apart:
        yield Tensor("latent_keys", ((f"{name}embed_q.weight", (heads * kind.rank, kind.passed)),))
        yield Tensor("latent_values", ((f"{name}unembed_out.weight", (heads * kind.values, kind.rank)),))
    else:
        both = (f"{name}kv_b_proj.weight", (heads * (kind.passed + kind.values), kind.rank))
        yield Tensor("latent_keys", (both,), part=HeadPart(heads, 0, kind.passed, transposed=True))
        yield Tensor("latent_values", (both,), part=HeadPart(heads, kind.passed, kind.values, transposed=False))
    yield Tensor("o", ((f"{config.names.o}.weight", (hidden, heads * kind.values)),))


def _projections(layer: LayerConfig) -> int:
    """Return how many of queries, keys and values a layer projects."""
    if layer.kv_source is not None:
        return 1
    return 2 if layer.keys_as_values else 3


def _per_layer_model(config: ModelConfig, own: PerLayerEmbedding) -> Iterator[Tensor]:
    """List the table of all layers' own embeddings, the projection of the model's to them, and its norm."""
    (table, projection, norm), width = config.names.per_layer_model, config.layers * own.width
    yield Tensor("per_layer_embedding", ((f"{table}.weight", (own.vocab, width)),))
    yield Tensor("per_layer_projection", ((f"{projection}.weight", (width, config.hidden_size)),))
    yield Tensor("per_layer_norm", ((f"{norm}.weight", (own.width,)),), config.norm_offset)


def _per_layer(config: ModelConfig, own: PerLayerEmbedding) -> Iterator[Tensor]:
    """List the projections of a layer from and to the residual stream beside its own embeddings, and the norm."""
    gate, out, norm = config.names.per_layer
    yield Tensor("per_layer_gate", ((f"{gate}.weight", (own.width, config.hidden_size)),))
    yield Tensor("per_layer_out", ((f"{out}.weight", (config.hidden_size, own.width)),))
    yield from _norm(config, "norm_per_layer", norm)


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
    shared, lanes = heads // kind.key_heads, heads // kind.key_heads * kind.value_dim
    for tensor, names, parts, group in (
        ("delta_in", config.names.delta_in, (kind.channels, kind.values), (kind.key_dim, kind.key_dim, lanes, lanes)),
        ("delta_gates", config.names.delta_gates, (heads, heads), (shared, shared)),
    ):
        sources = tuple((f"{source}.weight", (size, hidden)) for source, size in _stacked(names, parts))
        yield Tensor(tensor, sources, orders=(PartOrder(kind.key_heads, group),) if len(names) == 1 else ())
    yield Tensor("delta_taps", ((f"{name}conv1d.weight", (kind.channels, 1, kind.taps)),))
    yield Tensor("delta_decay", ((f"{name}A_log", (heads,)),))
    yield Tensor("delta_bias", ((f"{name}dt_bias", (heads,)),))
    yield Tensor("delta_norm", ((f"{name}norm.weight", (kind.value_dim,)),))
    yield Tensor("delta_out", ((f"{name}out_proj.weight", (hidden, kind.values)),))


def _mamba2(config: ModelConfig) -> Iterator[Tensor]:
    """List the projection to gates, inputs, B, C and steps, the convolution's taps and bias, the constants of the
    heads, and the norm and projection of the output."""
    hidden, kind, name = config.hidden_size, config.mamba, config.names.mamba
    assert kind is not None  # a layer is a state space model only where the model has them
    yield Tensor("mamba_in", ((f"{name}.in_proj.weight", (kind.projected, hidden)),))
    yield Tensor("mamba_taps", ((f"{name}.conv1d.weight", (kind.channels, 1, kind.taps)),))
    if kind.conv_bias:
        yield Tensor("mamba_conv_bias", ((f"{name}.conv1d.bias", (kind.channels,)),))
    yield Tensor("mamba_decay", ((f"{name}.A_log", (kind.heads,)),))
    yield Tensor("mamba_step_bias", ((f"{name}.dt_bias", (kind.heads,)),))
    yield Tensor("mamba_skip", ((f"{name}.D", (kind.heads,)),))
    yield Tensor("mamba_norm", ((f"{name}.norm.weight", (kind.inner,)),))
    yield Tensor("mamba_out", ((f"{name}.out_proj.weight", (hidden, kind.inner)),))


_MIXERS: Mapping[MixerKind, Callable[[ModelConfig], Iterator[Tensor]]] = {
    "convolution": _convolution,
    "gated_delta": _gated_delta,
    "mamba2": _mamba2,
    "none": lambda config: iter(()),
}


def qkv_orders(config: ModelConfig, layer: int = 0) -> tuple[RowOrder | None, ...]:
    """Return the order of the rows of each tensor that queries, keys and values of a layer are stored in; empty if none
    differs from the order in which they are read."""
    shape = config.kv_shape(layer)
    heads, kv, head_dim = config.heads, shape.heads, shape.key_width
    interleaved = config.ropes[0].dims if config.interleaved_rope else 0
    if len(config.names.qkv) > 1:
        separate = (RowOrder(1, heads, 0, 0, head_dim, interleaved), RowOrder(1, 0, kv, 0, head_dim, interleaved), None)
        return separate if interleaved else ()
    groups = {"parts": 1, "heads": heads, "kv_heads": kv}[config.qkv_layout]
    order = RowOrder(groups, heads // groups, kv // groups, kv // groups, head_dim, interleaved)
    return (order,) if groups > 1 or interleaved else ()


def _head_norms(config: ModelConfig, layer: int) -> Iterator[Tensor]:
    """List the weights of the norms of queries, and of keys if the layer has its own."""
    kv, own = config.kv_shape(layer), config.head_norm == "own"
    depth, counts = kv.key_width, (config.heads, kv.heads)
    kinds = ("q_norm", "k_norm") if config.kv_owner(layer) == layer else ("q_norm",)
    for number, (tensor, name, heads) in enumerate(zip(kinds, config.names.head_norms, counts, strict=False)):
        if "{}" in name:
            sources = tuple((f"{name.format(head)}.weight", (depth,)) for head in range(heads))
            yield Tensor(tensor, sources, config.norm_offset)
            continue
        shape = (heads, depth) if own else (heads * depth if config.head_norm == "all" else depth,)
        order = qkv_orders(config, layer)[number : number + 1] if own else ()
        yield Tensor(tensor, ((f"{name}.weight", shape),), config.norm_offset, order, own)


def _norm(config: ModelConfig, tensor: str, name: str) -> Iterator[Tensor]:
    """List the weight of a norm, and its bias if it has one."""
    if config.norm_weights:
        yield Tensor(tensor, ((f"{name}.weight", (config.hidden_size,)),), config.norm_offset)
    if config.norm_biases:
        yield Tensor(f"{tensor}_bias", ((f"{name}.bias", (config.hidden_size,)),))


def _norms(config: ModelConfig) -> Iterator[Tensor]:
    norms = config.norms
    for name, source in (
        ("norm_attention", norms.before_attention),
        ("norm_attention_out", norms.after_attention),
        ("norm_mlp", norms.before_mlp),
        ("norm_mlp_out", norms.after_mlp),
    ):
        if source is not None:
            yield from _norm(config, name, source)


def _mlp(config: ModelConfig, layer: LayerConfig) -> Iterator[Tensor]:
    names, ffn = config.names, layer.ffn_multiple * config.ffn
    up, sizes = ("gate_up", (ffn, ffn)) if config.gated else ("up", (ffn,))
    stacked = _stacked(names.gate_up, sizes)
    yield Tensor(up, tuple((f"{name}.weight", (size, config.hidden_size)) for name, size in stacked))
    yield Tensor("down", ((f"{names.down}.weight", (config.hidden_size, ffn)),))
    if config.mlp_bias:
        yield Tensor(f"{up}_bias", tuple((f"{name}.bias", (size,)) for name, size in stacked))
        yield Tensor("down_bias", ((f"{names.down}.bias", (config.hidden_size,)),))


def _experts(config: ModelConfig) -> Iterator[Tensor]:
    """List the router, the matrices of all experts, stacked expert after expert, and those of the shared expert."""
    experts, names, hidden = config.experts, config.names.experts, config.hidden_size
    assert experts is not None  # a layer has experts only where the model has
    every, width, gate_up = range(experts.count), experts.width(hidden), "gate_up" if experts.gated else "up"
    halves = [name for name in (names.gate, names.up) if name is not None]
    up = ((name.format(e) + ".weight", (experts.ffn, width)) for e in every for name in halves)
    yield Tensor("router", ((f"{names.router}.weight", (experts.count, hidden)),))
    if experts.router.bias:
        shape = (1, experts.count) if names.router_bias_row else (experts.count,)
        yield Tensor("router_correction", ((names.router_bias, shape),), flat=True)
    yield Tensor(f"experts_{gate_up}", tuple(up))
    yield Tensor("experts_down", tuple((names.down.format(e) + ".weight", (width, experts.ffn)) for e in every))
    if experts.latent:
        yield Tensor("experts_in", ((f"{names.latent[0]}.weight", (width, hidden)),))
        yield Tensor("experts_out", ((f"{names.latent[1]}.weight", (hidden, width)),))
    if experts.biases:
        up_biases = ((name.format(e) + ".bias", (experts.ffn,)) for e in every for name in halves)
        yield Tensor("router_bias", ((f"{names.router}.bias", (experts.count,)),))
        yield Tensor("experts_gate_up_bias", tuple(up_biases))
        yield Tensor("experts_down_bias", tuple((names.down.format(e) + ".bias", (hidden,)) for e in every))
    if config.experts_beside_mlp:
        yield Tensor("router_norm", ((names.router_scale, (hidden,)),))
        yield Tensor("expert_scales", ((names.expert_scales, (experts.count,)),))
        for tensor, name in zip(("norm_dense_out", "norm_experts", "norm_experts_out"), names.norms, strict=True):
            yield from _norm(config, tensor, name)
    if not experts.shared_ffn:
        return
    both = _stacked(names.shared_gate_up, (experts.shared_ffn,) * experts.halves)
    yield Tensor(f"shared_{gate_up}", tuple((f"{name}.weight", (size, hidden)) for name, size in both))
    yield Tensor("shared_down", ((f"{names.shared_down}.weight", (hidden, experts.shared_ffn)),))
    if experts.shared_gate:
        yield Tensor("shared_gate", ((f"{names.shared_gate}.weight", (1, hidden)),))


def _stacked(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """Pair each name with its outputs; a single name holds them all."""
    return [(names[0], sum(sizes))] if len(names) == 1 else list(zip(names, sizes, strict=True))


def parameter_count(config: ModelConfig) -> int:
    """Count the parameters of a model; a tied matrix counts as embedding and as head, because it is read as both."""
    return sum(map(size_of, tensors(config)))


def size_of(tensor: Tensor) -> int:
    """Count the values of a tensor."""
    if tensor.part is not None:
        return math.prod(tensor.part.shape(tensor.sources[0][1]))
    return sum(math.prod(shape) for _, shape in tensor.sources)


def check_tensors(
    names: Iterable[str],
    config: ModelConfig,
    path: Path,
    adds_nothing: Callable[[str], bool] = lambda name: False,
) -> None:
    """Refuse tensors that a model of this config does not read, except those that `adds_nothing`.

    A model without such a tensor would be another model. Raises `CheckpointError` with its name.
    """
    known = {source for tensor in tensors(config) for source, _ in tensor.sources}
    for name in names:
        if name not in known and not unread_reason(name, config) and not adds_nothing(name):
            problem = f"the tensor is not part of a {config.family} model as config.json has it"
            raise CheckpointError(path, name, problem)


def unread_reason(name: str, config: ModelConfig) -> str:
    """Return why a tensor that `tensors` does not list may be left out; empty for one that no such model has."""
    if name == f"{config.names.head}.weight":  # in transformers as well
        return "a copy of the embeddings, to which the head is tied"
    if is_derived(name, config):
        return "follows from config.json"
    if name.startswith(config.other_tensors):
        return "logits do not depend on it"
    if _is_shared_kv(name, config):
        return "the layer attends to the keys and values of an earlier one"
    head = _within(MTP_LAYERS, name)
    if head and int(head[1]) < config.mtp_layers:
        return "a head for multi-token prediction that drafts nothing here"
    return ""


def is_derived(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor of a checkpoint is one of those that are not read, as they follow from config.json."""
    match = _within(config.names.layers, name)
    return match is not None and int(match[1]) < config.layers and match[2] in config.names.derived


def is_later_layer(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor is of one of the layers behind the last that logits do not depend on."""
    return name.startswith(config.names.layers) and name.startswith(config.other_tensors)


def _is_shared_kv(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor makes keys or values in a layer that has none of its own."""
    match = _within(config.names.layers, name)
    if match is None or int(match[1]) >= config.layers or config.plan[int(match[1])].kv_source is None:
        return False
    return match[2].rpartition(".")[0] in (*config.names.qkv[1:], config.names.head_norms[1], config.names.value_norm)


def _within(prefix: str, name: str) -> re.Match[str] | None:
    """Match the number of a layer, and a name within it, behind a prefix."""
    return _NUMBERED.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
