"""Model configuration read from config.json: all that the runners know about an architecture."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.family import ACTIVATIONS, NEUTRAL, Family, rotated_layers
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.mixers import (
    read_convolution,
    read_delta,
    read_kinds,
    read_latent,
    read_mamba,
)
from workers.checkpoints.architectures.parts import (
    Activation,
    ExpertRouter,
    Experts,
    GatedDelta,
    HeadNorm,
    KvShape,
    LatentAttention,
    LayerConfig,
    Mamba2,
    MtpNames,
    Names,
    NormKind,
    Norms,
    PerLayerEmbedding,
    QkvLayout,
    ShortConvolution,
)
from workers.checkpoints.architectures.registered_families import families_for
from workers.checkpoints.architectures.rope import Llama3, LongRope, Rope, Yarn
from workers.checkpoints.architectures.rope_fields import attention_sharpness, read_ropes
from workers.checkpoints.architectures.wrapper import WRAPPERS, unwrap
from workers.checkpoints.documents import read_fields
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.quantization_config import Quantization, parse_quantization
from workers.errors import LoadRefused
from workers.precision import KvDtype, Quantize

DEFAULT_CONTEXT = 4096
"""Tokens of one slot unless more are asked for: KV memory is slots x context, and models state up to millions."""

CLASSIFIER = "ForSequenceClassification"
"""The ending of the classes of sequence classifiers."""
SCORE = "score."
"""The prefix of the tensors that only those have."""

WeightDtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: a token mixer, such as attention, and an MLP in every layer, one after the other or side by side, and
    residual connections."""

    family: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    plan: tuple[LayerConfig, ...]
    """The configuration of each layer."""
    ropes: tuple[Rope, ...]
    """The rotary embeddings that layers choose from; all rotate the same number of lanes."""
    experts: Experts | None
    """The mixture of experts, of layers that have one."""
    names: Names
    norms: Norms
    norm_offset: float
    """Offset that is added to the stored weights of all norms."""
    head_norm: HeadNorm | None
    activation: Activation
    rms_eps: float
    """Epsilon of all norms."""
    embedding_scale: float
    """Factor of embeddings."""
    rounds_embedding_scale: bool
    """The embedding scale is rounded to the type of the weights first."""
    attention_scale: float
    """Factor of the products of queries and keys."""
    residual_multiplier: float
    """Factor of what attention and the MLP add to the residual stream."""
    logits_scaling: float
    """Divisor of logits."""
    attention_cap: float | None
    """Soft cap of attention scores: s becomes cap * tanh(s / cap)."""
    logit_cap: float | None
    """Soft cap of logits."""
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mtp_layers: int
    """Heads for multi-token prediction that the checkpoint should have."""
    mtp: bool
    """The first of them is loaded: a layer more, which drafts tokens."""
    max_positions: int
    dtype: WeightDtype
    quantization: Quantization | None
    norm_kind: NormKind = "rms"
    """The kind of all norms."""
    mtp_names: MtpNames | None = None
    """The names of heads for multi-token prediction; None if the family has none."""
    norm_weights: bool = True
    norm_biases: bool = False
    """The norms of hidden rows have weights, and biases."""
    gated: bool = True
    """The MLP is act(gate) * up; otherwise it is act(up)."""
    mlp_bias: bool = False
    """Both matrices of the MLP have biases."""
    parallel: bool = False
    """The MLP reads what attention reads, and both are added to the residual stream at once. If it has a norm of its
    own (`Norms.before_mlp`), it reads that norm of the same rows."""
    interleaved_rope: bool = False
    """Checkpoints have pairs of neighbouring lanes, (2i, 2i + 1), where `Rope` has halves."""
    qkv_layout: QkvLayout = "parts"
    """The order of the rows of queries, keys and values if they are one matrix."""
    head_bias: bool = False
    """Logits have a bias."""
    qkv_clip: float | None = None
    """Queries, keys and values are clipped to its negative and itself."""
    convolution: ShortConvolution | None = None
    """The short convolution, of layers of the kind `convolution`."""
    delta: GatedDelta | None = None
    """The gated delta network, of layers of the kind `gated_delta`."""
    mamba: Mamba2 | None = None
    """The state space model, of layers of the kind `mamba2`."""
    attention_gate: bool = False
    """The output of attention is gated: the projection of queries has, behind the lanes of each head, as many of its
    gate."""
    latent: LatentAttention | None = None
    """The latent attention, of all layers; `kv_heads` is 1 then, and `head_dim` the lanes of its keys."""
    other_tensors: tuple[str, ...] = ()
    """Prefixes of tensors that checkpoints may have and that logits do not depend on."""
    kv_shapes: tuple[KvShape, ...] = ()
    """The shapes of keys and values that layers choose from; empty is one, of `kv_heads` and `head_dim`."""
    window_ring: bool = False
    """Layers that attend within a window keep no earlier rows (docs/adr/0130)."""
    sinks: bool = False
    """The softmax of each query head has a learned logit more, without a value
    (https://arxiv.org/abs/2309.17453)."""
    value_norm: bool = False
    """The values of each head are normed, without a weight."""
    layer_scalars: bool = False
    """The residual stream is multiplied by a number behind each layer."""
    per_layer: PerLayerEmbedding | None = None
    """Embeddings of each layer's own."""
    experts_beside_mlp: bool = False
    """Layers with experts have the MLP as well. Both read norms of their own of the same rows, as the router does, and
    norms of what they compute are added."""

    @classmethod
    def from_dir(cls, path: Path, families: Mapping[str, Family] = FAMILIES) -> "ModelConfig":
        """Read `config.json`, or the metadata of a GGUF file. Raises `CheckpointError` for what is missing, malformed
        or not supported, and `PluginRefused` for a family whose plug-in cannot be used."""
        fields, _ = unwrap(read_fields(path))
        return cls.from_fields(fields, families)

    @classmethod
    def from_fields(cls, fields: Fields, families: Mapping[str, Family] = FAMILIES) -> "ModelConfig":
        """Read the fields of a language model. Raises what `from_dir` raises."""
        return _read(fields, families_for(fields, families))

    @classmethod
    def family_of(cls, path: Path, families: Mapping[str, Family] = FAMILIES) -> str:
        """Return the family of a checkpoint. Raises `CheckpointError` for one that none describes, which is an
        `UndescribedParts` if a family describes others of its kind."""
        fields, _ = unwrap(read_fields(path))
        known = families_for(fields, families)
        name = _family(fields, known)
        _variant(fields, known[name])
        return name

    @property
    def layers(self) -> int:
        return len(self.plan)

    @property
    def kv_layers(self) -> int:
        """Layers that have keys and values of their own, that of a head for multi-token prediction included."""
        return len(self.kv_owners)

    @property
    def kv_owners(self) -> tuple[int, ...]:
        """The layers that have keys and values of their own. A head for multi-token prediction is the layer behind the
        last one."""
        own = (number for number, each in enumerate(self.plan) if each.kind == "attention" and each.kv_source is None)
        return (*own, *([self.layers] if self.mtp else []))

    def kv_owner(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads: its own, or those of its source."""
        source = self.plan[layer].kv_source if layer < self.layers else None
        return layer if source is None else source

    def kv_place(self, layer: int) -> int:
        """Return the place, among those of all layers, of the keys and values that a layer reads."""
        return self.kv_owners.index(self.kv_owner(layer))

    def kv_shape(self, layer: int) -> KvShape:
        """Return the shape of the keys and values that a layer reads. Its queries are as wide as its keys."""
        if not self.kv_shapes:
            return KvShape(self.kv_heads, self.head_dim, self.head_dim)
        return self.kv_shapes[self.plan[layer].kv_shape if layer < self.layers else 0]

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each array of the KV cache: those with keys and values of one shape, in the order of
        `kv_shapes`, and of these such that keep all rows, then such that keep a ring."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for layer in self.kv_owners:
            shape = self.plan[layer].kv_shape if layer < self.layers else 0
            groups.setdefault((shape, self.in_ring(layer)), []).append(layer)
        return tuple(tuple(groups[key]) for key in sorted(groups))

    def in_ring(self, layer: int) -> bool:
        """Return whether the rows that a layer reads are a ring: all layers that read them have a window."""
        if not self.window_ring:
            return False
        owner = self.kv_owner(layer)
        readers = [each for number, each in enumerate(self.plan) if self.kv_owner(number) == owner]
        return bool(readers) and all(each.window is not None for each in readers)

    @property
    def widest_window(self) -> int:
        """The widest attention window of a layer, in rows; 0 if none has one."""
        return max((each.window or 0 for each in self.plan), default=0)

    def kv_group(self, layer: int) -> int:
        """Return the number of the array of the KV cache that has the keys and values that a layer reads."""
        owner = self.kv_owner(layer)
        return next(number for number, group in enumerate(self.kv_groups) if owner in group)

    def kv_index(self, layer: int) -> int:
        """Return the place, in its array of the KV cache, of the keys and values that a layer reads."""
        return self.kv_groups[self.kv_group(layer)].index(self.kv_owner(layer))

    def state_index(self, layer: int) -> int:
        """Return how many of the first `layer` layers have a recurrent state."""
        return sum(each.recurrent for each in self.plan[:layer])

    @property
    def state_layers(self) -> int:
        """Layers that have a recurrent state."""
        return self.state_index(self.layers)

    @property
    def state_values(self) -> int:
        """Values of the recurrent state of one slot, all layers together, which are float32."""
        return self.state_offset(self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one slot, in float32."""
        return 4 * self.state_values

    @property
    def conv_state_values(self) -> int:
        """Values of that state which are inputs of convolutions: those of a model with them are of its own type on
        backends that keep them so."""
        parts = {"convolution": self.convolution, "gated_delta": self.delta, "mamba2": self.mamba}
        convolutions = (parts.get(each.kind) for each in self.plan)
        return sum((each.taps - 1) * each.channels for each in convolutions if each is not None)

    def state_offset(self, layer: int) -> int:
        """Return how many values the recurrent state of one slot has in the first `layer` layers."""
        sizes = {
            "attention": 0,
            "none": 0,
            "convolution": 0 if self.convolution is None else self.convolution.state_values,
            "gated_delta": 0 if self.delta is None else self.delta.state_values,
            "mamba2": 0 if self.mamba is None else self.mamba.state_values,
        }
        return sum(sizes[each.kind] for each in self.plan[:layer])

    def with_mtp(self) -> "ModelConfig":
        """Return the model with its head for multi-token prediction."""
        return replace(self, mtp=True)

    def without_mtp(self) -> "ModelConfig":
        """Return the model without that head."""
        return replace(self, mtp=False)

    def with_ring(self) -> "ModelConfig":
        """Return the model with layers that keep the rows of their window alone."""
        return replace(self, window_ring=True)

    def choose_context(self, requested: int) -> int:
        """Choose the rows of one slot's cache: `requested`, or for 0 the model's context, at most `DEFAULT_CONTEXT`.

        Raises `CheckpointError` when the model has fewer positions, `LoadRefused` when there is no room for an answer.
        """
        if requested == 1:
            raise LoadRefused("context: 1 token leaves no room for an answer, take 2 or more")
        if not requested:
            return min(self.max_positions, DEFAULT_CONTEXT)
        if requested > self.max_positions:
            problem = f"is {self.max_positions}, less than the context of {requested} tokens that was asked for"
            raise CheckpointError("config.json", "max_position_embeddings", problem)
        return requested

    def check_kv_dtype(self, kv_dtype: KvDtype) -> None:
        """Check the requested type of the KV cache. Raises `LoadRefused` for latents, which are not quantized: a row
        has one scale, and its lanes with the position are of another size than the normed ones."""
        if kv_dtype != "auto" and self.latent is not None:
            raise LoadRefused(f"kv_dtype: {kv_dtype} is not supported for latents, which are small: leave it out")

    def choose_embeddings(self, requested: bool) -> bool:
        """Check whether prompts may have rows of embeddings, without tokens. Raises `LoadRefused` for a model whose
        layers have embeddings of their own, by token."""
        if requested and self.per_layer is not None:
            raise LoadRefused(
                f"embeddings: rows without a token have no embeddings of layers, which {self.family} has "
                "(hidden_size_per_layer_input): leave it out"
            )
        return requested

    def choose_quantization(self, requested: Quantize) -> Quantize:
        """Check the requested quantization. Raises `CheckpointError` when the checkpoint is quantized already."""
        if requested != "none" and self.quantization is not None:
            raise CheckpointError(
                "config.json",
                "quantization",
                f"the model is quantized to {self.quantization.bits} bits already: leave quantize={requested} out",
            )
        return requested


def _read(fields: Fields, families: Mapping[str, Family]) -> ModelConfig:
    name = _family(fields, families)
    family = families[name]
    family = _variant(fields, family)
    fields = fields.of_family(family.defaults, family.field_names, family.aliases)
    _refuse_unsupported(fields, name, family)
    hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers", most=MAX_PARTS)
    latent = read_latent(fields, family)
    heads, kv_heads, head_dim = _heads(fields, hidden, family, latent)
    ropes = read_ropes(
        fields,
        head_dim if latent is None else latent.rotated,
        local=family.local_rope,
        partial=family.partial_rope,
        grows_queries=family.grows_queries,
        sections=family.rope_sections,
    )
    qkv_bias, o_bias = _attention_biases(fields, family)
    experts = _experts(fields, family)
    config = ModelConfig(
        family=name,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_ffn(fields, family, hidden),
        vocab_size=fields.integer("vocab_size"),
        plan=(plan := _plan(fields, family, layers)),
        ropes=ropes,
        experts=experts,
        names=family.names,
        norms=family.norms,
        norm_offset=family.norm_offset,
        head_norm=family.head_norm,
        activation=_activation(fields, family),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        embedding_scale=hidden**0.5 if family.scaled_embedding else _multiplier(fields, family, "embedding_multiplier"),
        rounds_embedding_scale=family.scaled_embedding,
        attention_scale=_attention_scale(fields, family, head_dim, latent),
        residual_multiplier=_residual_multiplier(fields, family, layers),
        logits_scaling=_logits_scaling(fields, family, hidden),
        attention_cap=fields.optional_number("attn_logit_softcapping"),
        logit_cap=fields.optional_number("final_logit_softcapping"),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mtp_layers=_mtp_layers(fields, family),
        mtp=False,
        mtp_names=family.mtp,
        max_positions=_max_positions(fields, family, ropes),
        dtype=_dtype(fields),
        quantization=parse_quantization(fields.file, fields.values),
        norm_kind=family.norm_kind,
        norm_weights=family.norm_weights,
        norm_biases=family.norm_biases,
        gated=family.gated,
        mlp_bias=fields.flag("mlp_bias", False) if family.mlp_biases is None else family.mlp_biases,
        parallel=family.parallel,
        interleaved_rope=family.interleaved_rope,
        qkv_layout=family.qkv_layout,
        head_bias=family.head_bias,
        qkv_clip=fields.optional_number("clip_qkv"),
        convolution=read_convolution(fields, plan),
        delta=read_delta(fields, plan),
        mamba=read_mamba(fields, plan),
        attention_gate=family.attention_gate,
        latent=latent,
        kv_shapes=() if latent is None else (KvShape(1, latent.keys, latent.rank),),
        other_tensors=family.other_tensors,
        sinks=family.sinks,
    )
    config = replace(config, **family.further(fields, config.plan, config.ropes))
    return _classifier(config) if fields.get("architectures") == [classifier_of(family)] else config


def classifier_of(family: Family) -> str:
    """Return the class of a family's sequence classifiers in transformers."""
    return family.architecture.removesuffix("ForCausalLM") + CLASSIFIER


def _classifier(config: ModelConfig) -> ModelConfig:
    """Return a sequence classifier, which has the matrix `score` in place of a head. The embeddings stand for the head,
    whose logits mean nothing."""
    return replace(config, tie_embeddings=True, other_tensors=(*config.other_tensors, SCORE), mtp_layers=0)


def _variant(fields: Fields, family: Family) -> Family:
    """Return the family as config.json changes it."""
    return family.variant(family, fields.of_family(family.defaults, family.field_names, family.aliases))


def _ffn(fields: Fields, family: Family, hidden: int) -> int:
    """Read the width of the MLP."""
    if family.read_ffn is not None:
        return family.read_ffn(fields)
    return fields.integer("intermediate_size", family.ffn_factor and family.ffn_factor * hidden)


def _attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Read whether queries, keys and values have biases, and whether the output has."""
    flag = fields.flag("attention_bias", False) if family.biases is None else family.biases
    if family.output_bias is not None:
        return flag, family.output_bias
    return flag, family.biases is None and flag


def _residual_multiplier(fields: Fields, family: Family, layers: int) -> float:
    """Read the factor of what layers add, which MiniCPM states for all layers together."""
    if "scale_depth" in family.reads:
        depth: float = fields.number("scale_depth")
        return depth / math.sqrt(layers)
    return _multiplier(fields, family, "residual_multiplier")


def _logits_scaling(fields: Fields, family: Family, hidden: int) -> float:
    """Read the divisor of logits, which Cohere states as a factor, and MiniCPM by a width."""
    if "dim_model_base" in family.reads:
        return hidden / fields.integer("dim_model_base", hidden)
    if "logit_scale" in family.reads:
        return 1 / fields.number("logit_scale")
    return _multiplier(fields, family, "logits_scaling")


def _family(fields: Fields, families: Mapping[str, Family]) -> str:
    names = fields.get("architectures")
    if names is None:
        family = fields.get("model_type", "")
        if not isinstance(family, str) or family not in families:
            raise fields.error("model_type", f"{family!r} is not supported, only one of {', '.join(families)}")
        return family
    known = {family.architecture: name for name, family in families.items()}
    known |= {classifier_of(family): name for name, family in families.items()}
    known |= {family.earlier_architecture: name for name, family in families.items() if family.earlier_architecture}
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str) or names[0] not in known:
        raise fields.error("architectures", f"{names!r} is not supported, only one of {', '.join([*known, *WRAPPERS])}")
    return known[names[0]]


def _refuse_unsupported(fields: Fields, name: str, family: Family) -> None:
    if family.biases is not None and fields.flag("attention_bias", family.biases) != family.biases:
        raise fields.error("attention_bias", f"is not supported for {name}, whose biases are fixed")
    for field, neutral in NEUTRAL.items():
        value = fields.get(field)
        if field not in family.reads and value is not None and value is not False and value != neutral:
            raise fields.error(field, f"{value!r} is not supported, only {neutral!r}")


def _heads(fields: Fields, hidden: int, family: Family, latent: LatentAttention | None) -> tuple[int, int, int]:
    """Read the numbers of query heads and of KV heads, and the lanes of a head."""
    heads = fields.integer("num_attention_heads")
    if latent is not None:
        if fields.integer("num_key_value_heads", heads) != heads:
            raise fields.error(
                "num_key_value_heads", f"is not num_attention_heads, {heads}, of which each has a matrix"
            )
        return heads, 1, latent.keys
    kv_heads = family.kv_heads or fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}")
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"{head_dim} is odd; rotary positions need pairs")
    return heads, kv_heads, head_dim


def _multiplier(fields: Fields, family: Family, name: str) -> float:
    """Read a multiplier of a family that has it; it is 1 for every other family."""
    return fields.number(name, 1.0) if name in family.reads else 1.0


def _attention_scale(fields: Fields, family: Family, head_dim: int, latent: LatentAttention | None) -> float:
    if latent is not None:
        plain: float = latent.query**-0.5
        return plain * attention_sharpness(fields) ** 2
    if "attention_multiplier" in family.reads:
        return fields.number("attention_multiplier")
    scale: float = fields.number("query_pre_attn_scalar", head_dim) ** -0.5
    return scale


def _activation(fields: Fields, family: Family) -> Activation:
    """Read the activation, which must be the family's: no other is what its models were trained with, or tested."""
    for name in ("hidden_act", "hidden_activation"):
        value = fields.get(name, family.activation)
        if value == family.activation_alias:
            continue
        if family.any_activation and isinstance(value, str) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        if not isinstance(value, str) or ACTIVATIONS.get(value) != ACTIVATIONS[family.activation]:
            raise fields.error(name, f"{value!r} is not supported, only {family.activation!r}")
    return ACTIVATIONS[family.activation]


def _plan(fields: Fields, family: Family, layers: int) -> tuple[LayerConfig, ...]:
    windowed = _windowed(fields, family, layers)
    window = fields.integer("sliding_window") if any(windowed) else None
    rotated = rotated_layers(fields, layers) if family.marks_rotated_layers else (True,) * layers
    if family.rotates_windowed and fields.get("sliding_window") is not None:
        rotated = windowed
    if not family.positions(fields):
        rotated = (False,) * layers
    experts = _layers_with_experts(fields, family, layers)
    kinds = read_kinds(fields, family, layers)
    return tuple(
        LayerConfig(
            window if windowed[layer] else None,
            None if not rotated[layer] else int(family.local_rope is not None and windowed[layer]),
            experts[layer],
            kinds[layer],
            mlp=not family.single_parts or kinds[layer] == "none",
        )
        for layer in range(layers)
    )


def _windowed(fields: Fields, family: Family, layers: int) -> tuple[bool, ...]:
    """Find the layers with an attention window: by `layer_types` (transformers 5), or by the family's rule."""
    if family.mixers:
        return (False,) * layers
    kinds = fields.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or any(kind not in ("full_attention", "sliding_attention") for kind in kinds)
    ):
        raise fields.error("layer_types", f"is not 'full_attention' or 'sliding_attention' for each of {layers} layers")
    switched_off = family.window_switch and not fields.flag("use_sliding_window", False)
    without = fields.get("sliding_window") is None and family.local_rope is None
    if family.windowed is None or switched_off or without:
        return (False,) * layers
    if kinds is not None:
        return tuple(kind == "sliding_attention" for kind in kinds)
    return family.windowed(fields, layers)


def _experts(fields: Fields, family: Family) -> Experts | None:
    if not family.experts:
        return None
    name = "num_experts" if fields.get("num_local_experts") is None else "num_local_experts"
    count, chosen = fields.integer(name, most=MAX_PARTS), fields.integer("num_experts_per_tok")
    if chosen > count:
        raise fields.error("num_experts_per_tok", f"{chosen} is more than {name}, {count}")
    normalize = family.normalizes_experts
    if normalize is None:
        normalize = fields.flag("norm_topk_prob", False)
    ffn, router = fields.integer(family.expert_ffn), family.read_router(fields)
    _check_groups(fields, router, count, chosen)
    shared = _shared_width(fields, family, ffn)
    latent = family.expert_latent
    return Experts(
        *(count, chosen, ffn, normalize, shared, family.shared_gate),
        router=router,
        biases=family.expert_biases,
        gated=family.gated,
        latent=0 if latent is None or fields.get(latent) is None else fields.integer(latent),
    )


def _check_groups(fields: Fields, router: ExpertRouter, count: int, chosen: int) -> None:
    """Refuse groups that are not equal, or that leave too few experts to choose from."""
    size = count // router.groups
    if router.groups > 1 and (count % router.groups or size < router.group_best):
        problem = f"{router.groups} groups of {count} experts are not equal, or of fewer than {router.group_best}"
        raise fields.error("n_group", problem)
    if not -(-chosen // size) <= router.kept_groups <= router.groups:
        problem = f"{router.kept_groups} of {router.groups} groups of {size} experts do not leave {chosen} to choose"
        raise fields.error("topk_group", problem)


def _shared_width(fields: Fields, family: Family, expert: int) -> int:
    """Read the width of the shared expert. It may be 0 in a family where that is the default, or that has a number of
    shared experts."""
    if family.shared_count is not None:
        none = fields.get(family.shared_count) in (None, 0)
        return 0 if none else expert * fields.integer(family.shared_count, most=MAX_PARTS)
    name = family.shared_ffn
    if name is None or fields.get(name) == 0 == family.defaults.get(name):
        return 0
    width: int = fields.integer(name)
    return width


def _layers_with_experts(fields: Fields, family: Family, layers: int) -> tuple[bool, ...]:
    """Find the layers with experts."""
    if not family.experts:
        return (False,) * layers
    if family.layers_with_experts is not None:
        return family.layers_with_experts(fields, layers)
    step, dense = fields.integer("decoder_sparse_step", 1), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.error("mlp_only_layers", "is not a list of layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def _mtp_layers(fields: Fields, family: Family) -> int:
    """Read the number of heads for multi-token prediction, which may be 0."""
    if family.mtp is None or fields.get(family.mtp.field, 0) == 0:
        return 0
    layers: int = fields.integer(family.mtp.field, most=MAX_PARTS)
    return layers


def _max_positions(fields: Fields, family: Family, ropes: tuple[Rope, ...]) -> int:
    """Read the positions of the model. YaRN multiplies those that it was trained on, whatever `max_position_embeddings`
    is."""
    stated = fields.integer("max_position_embeddings", 2048)
    if family.grows_queries:
        scalings = [rope.scaling for rope in ropes]
        return min([stated, *(each.original for each in scalings if isinstance(each, Yarn | Llama3 | LongRope))])
    reached = [int(rope.scaling.factor * rope.scaling.original) for rope in ropes if isinstance(rope.scaling, Yarn)]
    return max(stated, *reached) if reached else stated


def _dtype(fields: Fields) -> WeightDtype:
    name: Any = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise fields.error("dtype", f"{name!r} is not supported, only float32, float16 and bfloat16")
    dtype: WeightDtype = name
    return dtype
