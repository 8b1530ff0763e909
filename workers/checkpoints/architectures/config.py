"""Model configuration read from config.json: all that the runners know about an architecture."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.family import NEUTRAL, Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.layer_fields import read_experts, read_plan
from workers.checkpoints.architectures.mixers import (
    read_convolution,
    read_delta,
    read_latent,
    read_mamba,
)
from workers.checkpoints.architectures.model_fields import (
    read_activation,
    read_attention_biases,
    read_attention_scale,
    read_dtype,
    read_embedding_scale,
    read_ffn,
    read_heads,
    read_logits_scaling,
    read_max_positions,
    read_mtp_layers,
    read_residual_multiplier,
)
from workers.checkpoints.architectures.parts import (
    Activation,
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
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.architectures.rope_fields import read_ropes
from workers.checkpoints.architectures.wrapper import WRAPPERS, unwrap
from workers.checkpoints.documents import read_fields
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.quantization_config import Quantization, parse_quantization
from workers.errors import LoadRefused
from workers.precision import KvDtype, Quantize, WeightDtype

DEFAULT_CONTEXT = 4096
"""Tokens of one slot unless more are asked for: KV memory is slots x context, and models state up to millions."""

CLASSIFIER = "ForSequenceClassification"
"""The ending of the classes of sequence classifiers."""
SCORE = "score."
"""The prefix of the tensors that only those have."""


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
            problem = f"is {self.max_positions}, less than the context of {requested} tokens: lower --context"
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
    heads, kv_heads, head_dim = read_heads(fields, hidden, family, latent)
    ropes = read_ropes(
        fields,
        head_dim if latent is None else latent.rotated,
        local=family.local_rope,
        partial=family.partial_rope,
        grows_queries=family.grows_queries,
        sections=family.rope_sections,
    )
    qkv_bias, o_bias = read_attention_biases(fields, family)
    experts = read_experts(fields, family)
    config = ModelConfig(
        family=name,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=read_ffn(fields, family, hidden),
        vocab_size=fields.integer("vocab_size"),
        plan=(plan := read_plan(fields, family, layers)),
        ropes=ropes,
        experts=experts,
        names=family.names,
        norms=family.norms,
        norm_offset=family.norm_offset,
        head_norm=family.head_norm,
        activation=read_activation(fields, family),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        embedding_scale=read_embedding_scale(fields, family, hidden),
        rounds_embedding_scale=family.scaled_embedding,
        attention_scale=read_attention_scale(fields, family, head_dim, latent),
        residual_multiplier=read_residual_multiplier(fields, family, layers),
        logits_scaling=read_logits_scaling(fields, family, hidden),
        attention_cap=fields.optional_number("attn_logit_softcapping"),
        logit_cap=fields.optional_number("final_logit_softcapping"),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mtp_layers=read_mtp_layers(fields, family),
        mtp=False,
        mtp_names=family.mtp,
        max_positions=read_max_positions(fields, family, ropes),
        dtype=read_dtype(fields),
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
