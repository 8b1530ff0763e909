"""mlx-lm's model code with our attention and positions, and the checkpoints that it would compute differently."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.models import gemma2

from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.architectures.tensors import is_derived
from workers.checkpoints.architectures.wrapper import unwrap
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.documents import read_fields
from workers.checkpoints.weight_size import QUANTIZED_GROUP
from workers.errors import LoadRefused
from workers.mlx.families import adapter_plugin, unread_quantization
from workers.mlx.hybrid.mamba import group_norms, mamba_fields, name_decoder, row_by_row
from workers.mlx.hybrid.states import SlotMixer
from workers.mlx.modules.dense_parts import (
    ArceeMlp,
    CohereHeadNorm,
    NeoxArgs,
    NeoxMlp,
    NnWithoutWeights,
    PhiAttention,
    StableLmAttention,
    clip_projections,
    rotate_where_positions,
    separate_head,
)
from workers.mlx.modules.gemma4_parts import GeluExperts, PlainNn, gemma4_fields, plain_geglu
from workers.mlx.modules.latent import MiniCpm3Args, SlotLatentAttention, adjust_minicpm3, set_scales
from workers.mlx.modules.mixture_parts import Qwen2MoeArgs
from workers.mlx.modules.parts import (
    CappedAttention,
    PlainExperts,
    PlainGelu,
    PlainUngatedExperts,
    apply_multipliers,
    correct_embedding_scale,
    plain_clamped_swiglu,
    plain_clip_residual,
    plain_precise_swiglu,
    plain_swiglu,
    ragged_attention,
)
from workers.mlx.modules.routed_experts import replace_routers
from workers.mlx.modules.ungated import relu2, ungated
from workers.mlx.mtp import LaterNorm, MtpLayer
from workers.mlx.rotary import Rotary, no_positions
from workers.mlx.runtime.adapter import apply_adapter
from workers.mlx.stored_weights import load_weights
from workers.precision import Quantize

OTHER_VERSION = "this version of mlx-lm is not supported, `pip install 'baton-serve[mlx]'` installs one that is"


HEADS = (".latent_keys", ".latent_values")
"""Endings of the names of the matrices of each head."""
ROUTERS = (".gate", ".router", ".router.layer", ".router.proj", ".shared_expert_gate")
"""Endings of the names of routers, and of the gate of the shared expert."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A module of `mlx_lm.models`, and the names in it that are replaced."""

    module: str
    always: Mapping[str, Any] = field(default_factory=lambda: {"scaled_dot_product_attention": ragged_attention})
    """Replacements on every device, by name."""
    uncompiled: Mapping[str, Any] = field(default_factory=lambda: {"swiglu": plain_swiglu})
    """Further replacements where `mx.compile` is not used."""
    submodules: Mapping[str, "Adapter"] = field(default_factory=dict)
    """Names in it of other modules of mlx-lm, in which names are replaced in turn."""
    biases: bool = False
    """Gives the projections of attention the biases that `attention_bias` asks for."""
    free_head_dim: bool = True
    """Reads `head_dim`. Without it a head has hidden_size / num_attention_heads lanes."""
    layer_types: bool = False
    """Needs `layer_types`, with both kinds of layers in it."""
    classes: tuple[str, str] = ("Model", "ModelArgs")
    """The classes of the model and of its fields."""
    takes: Mapping[str, tuple["Adapter", str]] = field(default_factory=dict)
    """Names in it that it has imported from other modules of mlx-lm, in which names are replaced in turn."""
    mixer: str = ""
    """The attribute of a layer that has a recurrent state; empty if all have attention."""
    adjust: Callable[[Any, ModelConfig], None] = lambda model, config: None
    """Replaces modules of the loaded model that round a factor more than transformers does, or compute otherwise."""
    fixed_biases: bool = False
    """Gives the projections of attention and the MLP the biases that its models have; they cannot be left out."""
    attention: str = "self_attn"
    """The name of attention in a layer."""
    head: Literal["as_tied", "removed", "kept"] = "as_tied"
    """The module has a head of its own if heads are not tied, or never, and gets one then; or always, which is removed
    if they are, or cannot be."""
    attention_type: str = "full_attention"
    """The name in `layer_types` of attention without a window."""
    dense_layers: bool = True
    """Layers of a model with a mixture of experts may have an MLP in its place."""
    window_pattern: int | None = 1
    """`sliding_window_pattern` of a model without windows."""
    fields: Callable[[ModelConfig], Mapping[str, Any]] = lambda config: {}
    """Further fields of config.json for `ModelArgs`."""


LLAMA = Adapter("llama", biases=True)
QWEN3_NEXT = Adapter(
    "qwen3_next",
    uncompiled={"swiglu": plain_swiglu, "precise_swiglu": plain_precise_swiglu, "SwitchGLU": PlainExperts},
    mixer="linear_attn",
)
MAMBA = {"scaled_dot_product_attention": ragged_attention, "ssm_update": row_by_row}
GRANITE_HYBRID = Adapter(
    "granitemoehybrid",
    always=MAMBA,
    uncompiled={"swiglu": plain_swiglu, "SwitchGLU": PlainExperts},
    biases=True,
    free_head_dim=False,
    layer_types=True,
    attention_type="attention",
    takes={
        # The MLP of models without experts has the layout of the shared expert in checkpoints.
        "GraniteMoeHybridMLP": (
            Adapter("granitemoehybrid", always={}, uncompiled={"swiglu": plain_swiglu}),
            "GraniteMoeHybridSharedMLP",
        )
    },
    mixer="mamba",
    adjust=group_norms,
)
"""Without experts as in transformers' checkpoints; `_adapter` knows those of mlx-lm."""
NEMOTRON_H = Adapter(
    "nemotron_h",
    always=MAMBA,
    biases=True,
    mixer="mixer",
    attention="mixer",
    uncompiled={"SwitchMLP": PlainUngatedExperts},
    head="kept",
    adjust=name_decoder,
)
EXPERTS = Adapter("qwen3_moe", uncompiled={"swiglu": plain_swiglu, "SwitchGLU": PlainExperts})
GEMMA4 = Adapter(
    "gemma4_text",
    uncompiled={"geglu": plain_geglu, "nn": PlainNn(), "SwitchGLU": GeluExperts},
    layer_types=True,
    fields=gemma4_fields,
)
ADAPTERS: Mapping[str, Adapter] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": Adapter("qwen2", biases=True, free_head_dim=False),
    "mimo": Adapter("mimo", free_head_dim=False),
    "qwen3": Adapter("qwen3"),
    "smollm3": Adapter("smollm3", always={}, uncompiled={}, submodules={"llama": LLAMA}, biases=True),
    "olmo2": Adapter("olmo2", biases=True),
    "olmo3": Adapter("olmo3", biases=True, layer_types=True),
    "seed_oss": Adapter("seed_oss"),
    "phi3": Adapter("phi3", free_head_dim=False),
    # mlx-lm computes the GELU of Gemma 1 exactly; its models were trained with the approximation by tanh.
    "gemma": Adapter(
        "gemma",
        always={"scaled_dot_product_attention": ragged_attention, "MLP": gemma2.MLP},
        uncompiled={"MLP": PlainGelu},
    ),
    "gemma2": Adapter("gemma2", always={"Attention": CappedAttention}, uncompiled={"MLP": PlainGelu}),
    "gemma3_text": Adapter(
        "gemma3_text",
        uncompiled={"MLP": PlainGelu, "clip_residual": plain_clip_residual},
        adjust=correct_embedding_scale,
    ),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "granite": Adapter("granite", biases=True, free_head_dim=False, adjust=apply_multipliers),
    "qwen3_moe": EXPERTS,
    # mlx-lm does not read `norm_topk_prob` here; the block of its Qwen3-Next, which has the same parts, does.
    "qwen2_moe": Adapter(
        "qwen2_moe",
        always={"scaled_dot_product_attention": ragged_attention, "ModelArgs": Qwen2MoeArgs},
        uncompiled={},
        takes={"Qwen2MoeSparseMoeBlock": (QWEN3_NEXT, "Qwen3NextSparseMoeBlock")},
        free_head_dim=False,
        head="removed",
        dense_layers=False,
    ),
    "olmoe": Adapter("olmoe", uncompiled={"SwitchGLU": PlainExperts}, biases=True, dense_layers=False),
    "granitemoe": Adapter(
        "granitemoe",
        uncompiled={"SwitchGLU": PlainExperts},
        biases=True,
        free_head_dim=False,
        adjust=apply_multipliers,
        dense_layers=False,
    ),
    # mlx-lm has the shared expert in its module for hybrid Granite models, whose layers may all have attention.
    "granitemoeshared": replace(
        EXPERTS,
        module="granitemoehybrid",
        biases=True,
        free_head_dim=False,
        layer_types=True,
        attention_type="attention",
        adjust=apply_multipliers,
        dense_layers=False,
    ),
    "glm4_moe": replace(EXPERTS, module="glm4_moe", head="removed"),
    "ernie4_5_moe": replace(EXPERTS, module="ernie4_5_moe"),
    "phimoe": Adapter(
        "phimoe", uncompiled={"SwitchGLU": PlainExperts}, fixed_biases=True, free_head_dim=False, head="kept"
    ),
    "lfm2_moe": replace(EXPERTS, module="lfm2_moe", mixer="conv", free_head_dim=False),
    "granitemoehybrid": GRANITE_HYBRID,
    "nemotron_h": NEMOTRON_H,
    "qwen3_next": QWEN3_NEXT,
    "gpt_oss": Adapter(
        "gpt_oss",
        uncompiled={"SwitchGLU": PlainExperts, "SwigluOAI": plain_clamped_swiglu},
        fixed_biases=True,
        layer_types=True,
        head="kept",
        dense_layers=False,
    ),
    "lfm2": Adapter("lfm2", free_head_dim=False, mixer="conv"),
    "qwen3_5_text": Adapter(
        "qwen3_5",
        always={},
        uncompiled={},
        classes=("TextModel", "TextModelArgs"),
        takes={"Attention": (QWEN3_NEXT, "Qwen3NextAttention"), "MLP": (QWEN3_NEXT, "Qwen3NextMLP")},
        mixer="linear_attn",
    ),
    "qwen3_5_moe_text": Adapter(
        "qwen3_5",
        always={},
        uncompiled={},
        classes=("TextModel", "TextModelArgs"),
        takes={
            "Attention": (QWEN3_NEXT, "Qwen3NextAttention"),
            "SparseMoeBlock": (QWEN3_NEXT, "Qwen3NextSparseMoeBlock"),
        },
        mixer="linear_attn",
        dense_layers=False,
    ),
    "mixtral": Adapter("mixtral", uncompiled={"SwitchGLU": PlainExperts}, free_head_dim=False),
    "starcoder2": Adapter(
        "starcoder2", uncompiled={}, fixed_biases=True, free_head_dim=False, adjust=ungated("c_fc", "c_proj")
    ),
    "stablelm": Adapter("stablelm", always={"Attention": StableLmAttention}, free_head_dim=False, head="removed"),
    # mlx-lm has an MLP of four times the width with an approximate GELU, and the head inside of the decoder.
    "gpt_neox": Adapter(
        "gpt_neox",
        always={"scaled_dot_product_attention": ragged_attention, "MLP": NeoxMlp, "ModelArgs": NeoxArgs},
        uncompiled={},
        fixed_biases=True,
        free_head_dim=False,
        attention="attention",
        head="kept",
        adjust=separate_head,
    ),
    "cohere": Adapter(
        "cohere",
        always={"scaled_dot_product_attention": ragged_attention, "LayerNorm2D": CohereHeadNorm},
        biases=True,
        free_head_dim=False,
    ),
    "cohere2": Adapter("cohere2", biases=True, free_head_dim=False, adjust=rotate_where_positions),
    "phi": Adapter(
        "phi",
        always={"PhiAttention": PhiAttention},
        uncompiled={},
        fixed_biases=True,
        free_head_dim=False,
        head="kept",
        adjust=ungated("fc1", "fc2"),
    ),
    "glm": Adapter("glm"),
    "glm4": Adapter("glm4", head="removed"),
    "exaone4": Adapter("exaone4", window_pattern=None),
    "nemotron": Adapter("nemotron", biases=True, uncompiled={"relu_squared": relu2}),
    # The modules of mlx-lm for these two are Llama's with other parts; its own of OLMo needs another package.
    "olmo": Adapter(
        "llama",
        always={"scaled_dot_product_attention": ragged_attention, "nn": NnWithoutWeights()},
        biases=True,
        adjust=clip_projections,
    ),
    "arcee": Adapter(
        "llama",
        always={"scaled_dot_product_attention": ragged_attention, "MLP": ArceeMlp},
        biases=True,
        adjust=ungated("up_proj", "down_proj"),
    ),
    "helium": Adapter("helium", free_head_dim=False, head="removed"),
    "ernie4_5": Adapter("ernie4_5", biases=True),
    "deepseek_v2": replace(
        EXPERTS, module="deepseek_v2", always={"DeepseekV2Attention": SlotLatentAttention}, adjust=set_scales
    ),
    "deepseek_v3": replace(
        EXPERTS, module="deepseek_v3", always={"DeepseekV3Attention": SlotLatentAttention}, adjust=set_scales
    ),
    "glm4_moe_lite": replace(
        EXPERTS, module="glm4_moe_lite", always={"Glm4MoeLiteAttention": SlotLatentAttention}, adjust=set_scales
    ),
    "minicpm3": Adapter(
        "minicpm3", always={"Attention": SlotLatentAttention, "ModelArgs": MiniCpm3Args}, adjust=adjust_minicpm3
    ),
    "ministral": LLAMA,
    "ministral3": LLAMA,
}
"""The adapters by family."""


def bind_module(adapter: Adapter, *, compiled: bool) -> ModuleType:
    """Load a fresh copy of the adapter's module and replace its names.

    The module that `import` gives is shared by the whole process and stays as it is. Without `compiled` nothing in the
    copy goes through `mx.compile`, which on a CPU runs a C++ compiler and loads the result from a folder that other
    users can write to. Raises `LoadRefused` for a version of mlx-lm that lacks the module or a name.
    """
    name = adapter.module
    spec = importlib.util.find_spec(f"mlx_lm.models.{name}")
    if spec is None or spec.loader is None:
        raise LoadRefused(f"mlx_lm has no module mlx_lm.models.{name}: {OTHER_VERSION}")
    importlib.import_module(spec.name)  # dataclasses with postponed annotations look their module up
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    replacements = dict(adapter.always) if compiled else {**adapter.always, **adapter.uncompiled}
    replacements |= {key: bind_module(inner, compiled=compiled) for key, inner in adapter.submodules.items()}
    for key, (inner, taken) in adapter.takes.items():
        replacements[key] = getattr(bind_module(inner, compiled=compiled), taken)
    for attribute, replacement in replacements.items():
        if not hasattr(module, attribute):
            raise LoadRefused(f"mlx_lm.models.{name} has no {attribute}: {OTHER_VERSION}")
        setattr(module, attribute, replacement)
    return module


def load_architecture(
    path: Path,
    config: ModelConfig,
    context: int,
    quantize: Quantize = "none",
    *,
    compiled: bool,
    adapter: Path | None = None,
    added: Callable[[Any], None] = lambda model: None,
) -> Any:
    """Make the `mlx_lm` model of a checkpoint, for slots of `context` rows, with a LoRA `adapter`, and what `added`
    adds to its modules while they have the names of mlx-lm. Weights are read lazily.

    Quantized layers stay quantized, unless a GGUF file is to be quantized anew by `quantize`. Raises `CheckpointError`
    for a checkpoint that mlx-lm would compute differently or whose weights do not fit, `LoadRefused` for a version of
    mlx-lm that is not supported.
    """
    family = _adapter(path, config)
    module = bind_module(family, compiled=compiled)
    fields, _ = unwrap(read_fields(path))
    weights = open_weights(path, quantize)
    weights.check_types(lambda name: is_derived(name, config))
    try:
        model_class, args_class = (getattr(module, name) for name in family.classes)
        args = args_class.from_dict({**fields.values, **_model_config(config, family), **family.fields(config)})
        model = model_class(args)
        if config.tie_embeddings and family.head == "removed":
            del model.lm_head
        if not config.tie_embeddings and family.head == "as_tied" and "lm_head" not in model:
            model.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        replace_routers(model, config)
        mtp = MtpLayer(module, args) if config.mtp else None
        load_weights(model, weights, config, mtp)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(path, "", f"cannot be loaded by mlx-lm: {error}") from error
    if adapter is not None:  # before modules are wrapped, whose names it has
        apply_adapter(model, adapter)
    added(model)
    ropes = [Rotary(rope, context, interleaved=config.interleaved_rope) for rope in config.ropes]
    for module_layer, layer in zip(model.layers, config.plan, strict=True):
        if layer.kind == "none":
            continue
        if layer.kind == "attention":
            rope = no_positions if layer.rope is None else ropes[layer.rope]
            getattr(module_layer, family.attention).rope = rope
        else:
            setattr(module_layer, family.mixer, SlotMixer(getattr(module_layer, family.mixer)))
    family.adjust(model, config)
    if mtp is not None:
        mtp.block.self_attn.rope = ropes[0]
        model.mtp = mtp
        model.model.norm = LaterNorm(model.model.norm)
    return model


def quantize_matrices(path: Path, model: Any, bits: int) -> None:
    """Quantize the matrices of a lazily read model in place, where their rows are whole groups.

    Routers and gates are left out: they are small, and an error in a router chooses other experts. Raises
    `CheckpointError` when no matrix has rows of whole groups.
    """
    quantized = []

    def fits(name: str, module: Any) -> bool:
        fit = (
            not name.endswith(ROUTERS)
            and hasattr(module, "to_quantized")
            and module.weight.shape[-1] % QUANTIZED_GROUP == 0
        )
        quantized.append(fit)
        return fit

    nn.quantize(model, group_size=QUANTIZED_GROUP, bits=bits, class_predicate=fits)
    if not any(quantized):
        problem = f"no matrix has rows of whole groups of {QUANTIZED_GROUP}: none can be made int{bits}"
        raise CheckpointError(path / "config.json", "hidden_size", problem)


def _adapter(path: Path, config: ModelConfig) -> Adapter:
    """Find the family's adapter. Raises `CheckpointError` for a checkpoint that it would compute differently."""
    file = path / "config.json"
    if problem := unread_quantization(config):
        raise CheckpointError(file, "quantization_config.quant_method", problem)
    adapter = ADAPTERS.get(config.family)
    if config.family == "granitemoeshared" and config.experts is not None and not config.experts.shared_ffn:
        adapter = ADAPTERS["granitemoe"]  # the module with shared experts has no layer without one
    if config.family == "granitemoehybrid" and len(config.names.gate_up) > 1:
        adapter = replace(GRANITE_HYBRID, takes={})  # mlx-lm's own MLP
    if adapter is None and (plugin := adapter_plugin(config.family)) is not None:
        adapter = plugin.load(Adapter)
    if adapter is None:
        known = ", ".join(ADAPTERS)
        raise CheckpointError(
            file, "model_type", f"{config.family!r} is not supported by the MLX backend, only {known}"
        )
    if not adapter.free_head_dim and config.head_dim * config.heads != config.hidden_size:
        raise CheckpointError(file, "head_dim", f"{config.head_dim} is not hidden_size / num_attention_heads")
    if not adapter.dense_layers and not all(layer.experts for layer in config.plan):
        problem = f"an MLP in place of experts is not supported by the MLX backend for {config.family}"
        raise CheckpointError(file, "decoder_sparse_step", f"{problem}: take --backend iree")
    if config.family == "ernie4_5_moe" and any(a.experts > b.experts for a, b in pairwise(config.plan)):
        problem = "a dense layer behind one with experts is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "moe_layer_interval", problem)
    if adapter.mixer == "linear_attn" and _attention_interval(config) is None:
        problem = "is supported by the MLX backend with attention in every nth layer only"
        raise CheckpointError(file, "layer_types", problem)
    experts = config.experts
    if adapter.fixed_biases and experts is not None and not config.qkv_bias:
        problem = "false is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "attention_bias", problem)
    if adapter.fixed_biases and experts is not None and not (experts.biases or config.head_bias):
        problem = "false is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "lm_head_bias", problem)
    if adapter.fixed_biases and experts is None and not (config.qkv_bias and config.o_bias and config.mlp_bias):
        raise CheckpointError(file, "use_bias", f"false is not supported by the MLX backend for {config.family}")
    if config.tie_embeddings and adapter.head == "kept":
        raise CheckpointError(file, "tie_word_embeddings", f"is not supported by the MLX backend for {config.family}")
    if config.o_bias and not (adapter.biases or adapter.fixed_biases):
        raise CheckpointError(file, "attention_bias", f"is not supported by the MLX backend for {config.family}")
    return adapter


def _attention_interval(config: ModelConfig) -> int | None:
    """Return n if every nth layer has attention, and no other; None otherwise."""
    found = [number + 1 for number, layer in enumerate(config.plan) if layer.kind == "attention"]
    if not found or found != list(range(found[0], config.layers + 1, found[0])):
        return None
    return found[0]


def _latent_config(config: ModelConfig) -> dict[str, Any]:
    """Fields of models with latent attention, see `_model_config`. Their factor of scores is set later."""
    kind = config.latent
    if kind is None:
        return {}
    return {
        "kv_lora_rank": kind.rank,
        "q_lora_rank": kind.query_rank,
        "qk_nope_head_dim": kind.passed,
        "qk_rope_head_dim": kind.rotated,
        "v_head_dim": kind.values,
        "scale_emb": 1.0,
        "scale_depth": config.layers**0.5,
        "dim_model_base": config.hidden_size,
    }


def _hybrid_config(config: ModelConfig) -> dict[str, Any]:
    """Fields of hybrid models, see `_model_config`."""
    if config.delta is not None:
        return {
            "full_attention_interval": _attention_interval(config),
            "linear_num_value_heads": config.delta.value_heads,
            "linear_num_key_heads": config.delta.key_heads,
            "linear_key_head_dim": config.delta.key_dim,
            "linear_value_head_dim": config.delta.value_dim,
            "linear_conv_kernel_dim": config.delta.taps,
        }
    if config.mamba is not None:
        return mamba_fields(config, config.mamba)
    if config.convolution is None:
        return {}
    return {
        "norm_eps": config.rms_eps,
        "conv_bias": False,
        "conv_L_cache": config.convolution.taps,
        "block_dim": config.hidden_size,
        "block_ff_dim": config.ffn,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [number for number, layer in enumerate(config.plan) if layer.kind == "attention"],
    }


def _router_config(config: ModelConfig, experts: Experts) -> dict[str, Any]:
    """Fields of mixtures whose router `RoutedExperts` replaces, and of their dense layers, see `_model_config`."""
    dense = next((number for number, layer in enumerate(config.plan) if layer.experts), config.layers)
    return {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared_ffn // experts.ffn or None,
        "first_k_dense_replace": dense,
        "num_dense_layers": dense,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "moe_num_experts": experts.count,
        "moe_k": experts.per_token,
        "moe_num_shared_experts": experts.shared_ffn // experts.ffn,
        "moe_layer_start_index": dense,
        "moe_layer_interval": 1,
        "moe_layer_end_index": None,
        "moe_gate_act": "softmax",
        "use_expert_bias": experts.router.bias,
    }


def _model_config(config: ModelConfig, adapter: Adapter) -> dict[str, Any]:
    """Fields of config.json for mlx-lm, as both backends read them: its defaults differ from transformers'.

    Positions, attention windows and Granite's multipliers are applied by our replacements, so these fields are neutral.
    """
    experts = config.experts
    kinds = [
        "sliding_attention" if layer.window else adapter.mixer if layer.recurrent else adapter.attention_type
        for layer in config.plan
    ]
    mixture = (
        {}
        if experts is None
        else {
            "num_experts": experts.count,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": experts.ffn,
            "shared_expert_intermediate_size": experts.shared_ffn,
            "shared_intermediate_size": experts.shared_ffn,
            "norm_topk_prob": experts.normalize,
            **_router_config(config, experts),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [number for number, layer in enumerate(config.plan) if not layer.experts],
        }
    )
    return (
        mixture
        | _hybrid_config(config)
        | _latent_config(config)
        | {
            "hidden_size": config.hidden_size,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "vocab_size": config.vocab_size,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_eps,
            "norm_epsilon": config.rms_eps,
            "layer_norm_eps": config.rms_eps,
            "norm_eps": config.rms_eps,
            "tie_word_embeddings": config.tie_embeddings,
            "attention_bias": config.qkv_bias,
            "max_position_embeddings": config.max_positions,
            "rope_theta": config.ropes[0].theta,
            "rope_scaling": None,
            "rope_parameters": None,
            "rope_traditional": False,
            "partial_rotary_factor": 1.0,
            "no_rope_layers": None,
            "layer_types": kinds if adapter.layer_types else None,
            "sliding_window": None,
            "sliding_window_pattern": adapter.window_pattern,
            "query_pre_attn_scalar": config.attention_scale**-2,
            "attn_logit_softcapping": config.attention_cap,
            "final_logit_softcapping": config.logit_cap,
            "attention_multiplier": config.attention_scale,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "mlp_bias": config.mlp_bias,
            "use_bias": config.qkv_bias,
            "use_qkv_bias": config.qkv_bias,
            "use_parallel_residual": config.parallel,
            "qk_layernorm": config.head_norm is not None,
            "use_qk_norm": config.head_norm is not None,
            "layer_norm_bias": config.norm_biases,
            "rotary_pct": 1.0,
            "rotary_emb_base": config.ropes[0].theta,
        }
    )
