"""The adapters of mlx-lm's modules by family: our attention, and what its modules would compute differently."""

from collections.abc import Mapping
from dataclasses import replace

from mlx_lm.models import gemma2

from workers.mlx.architecture import Adapter
from workers.mlx.hybrid.mamba import group_norms, name_decoder, row_by_row
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
from workers.mlx.modules.ungated import relu2, ungated

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
