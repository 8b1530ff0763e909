"""Tiny multimodal checkpoints with random weights, made and saved by transformers: config, weights, preprocessing,
tokenizer and chat template of each family, in the form in which the family is published.

`make_vision_checkpoint` needs torch, so tests that call it have the marker `reference`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.checkpoints import EOS_ID, make_checkpoint

VOCAB = 640
"""Tokens of each checkpoint: those of `tests.checkpoints`, and those of the family behind them."""
CHATML = ("<|im_start|>", "<|im_end|>")
TEXT: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": VOCAB,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": EOS_ID,
    "pad_token_id": 0,
}
SECTIONS: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}
SIGLIP: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
QWEN_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
QWEN_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for content in message.content %}"
    "{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif content.type == 'video' or 'video' in content %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in content %}{{- content.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
GEMMA3_TEMPLATE = (
    "{{ bos_token }}{%- for message in messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"
)
GEMMA4_TEMPLATE = (
    "{{ bos_token }}{%- for message in messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<|turn>' + role + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}{{ '<|image|>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<turn|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|turn>model\\n' }}{%- endif -%}"
)
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
LFM2_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<image>' }}{% elif content['type'] == 'text' %}{{ content['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class VisionCase:
    """A family's checkpoint."""

    name: str
    """The class in transformers, without its ending."""
    text: Mapping[str, Any]
    """Fields of `text_config`, beside `TEXT`."""
    vision: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    """The contents of preprocessor_config.json."""
    specials: tuple[str, ...]
    template: str
    tokens: Mapping[str, str]
    """Fields of config.json that have the ids of special tokens."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of config.json."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """The contents of processor_config.json."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Names of special tokens, as tokenizer_config.json has them in `extra_special_tokens`."""


QWEN3_TOWER: Mapping[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 36,
    "hidden_act": "gelu_pytorch_tanh",
}
QWEN_TOKENS: Mapping[str, str] = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
QWEN3_PREPROCESSOR: Mapping[str, Any] = {
    "size": {"longest_edge": 8192, "shortest_edge": 256},
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
CLIP: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN2_PREPROCESSOR: Mapping[str, Any] = {
    **CLIP,
    "min_pixels": 256,
    "max_pixels": 16384,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "processor_class": "Qwen2_5_VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
}
HALF: Mapping[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

VISION_FAMILIES: Mapping[str, VisionCase] = {
    "gemma3": VisionCase(
        "Gemma3",
        {"num_hidden_layers": 6, "sliding_window": 24, "query_pre_attn_scalar": 16},
        {**SIGLIP, "image_size": 32, "patch_size": 4, "vision_use_head": False},
        {
            **HALF,
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_pan_and_scan": None,
            "do_rescale": True,
            "do_resize": True,
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 4,
            "pan_and_scan_max_num_crops": None,
            "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None,
            "processor_class": "Gemma3Processor",
            "resample": 2,
            "rescale_factor": 1 / 255,
            "size": {"height": 32, "width": 32},
        },
        ("<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        GEMMA3_TEMPLATE,
        {
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
            "image_token_index": "<image_soft_token>",
        },
        fields={"mm_tokens_per_image": 4},
        processor={"image_seq_length": 4, "processor_class": "Gemma3Processor"},
        named={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    "gemma4": VisionCase(
        "Gemma4",
        {
            "num_hidden_layers": 6,
            "sliding_window": 24,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 0,
            "use_bidirectional_attention": "vision",
        },
        {
            **SIGLIP,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 3,
            "position_embedding_size": 512,
            "use_clipped_linears": False,
            "standardize": True,
        },
        {
            "do_convert_rgb": True,
            "do_normalize": False,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.0, 0.0, 0.0],
            "image_processor_type": "Gemma4ImageProcessor",
            "image_seq_length": 70,
            "image_std": [1.0, 1.0, 1.0],
            "max_soft_tokens": 70,
            "patch_size": 4,
            "pooling_kernel_size": 3,
            "resample": 3,
            "rescale_factor": 1 / 255,
        },
        ("<bos>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|audio>", "<audio|>", "<|audio|>"),
        GEMMA4_TEMPLATE,
        {
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
            "image_token_id": "<|image|>",
            "boa_token_id": "<|audio>",
            "audio_token_id": "<|audio|>",
        },
        fields={"audio_config": None},
        named={
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "image_token": "<|image|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
            "audio_token": "<|audio|>",
        },
    ),
    "lfm2_vl": VisionCase(
        "Lfm2Vl",
        {
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "block_multiple_of": 32,
            "conv_L_cache": 3,
        },
        {**SIGLIP, "num_patches": 36, "patch_size": 4, "vision_use_head": False, "model_type": "siglip2_vision_model"},
        {
            **HALF,
            "do_convert_rgb": None,
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "downsample_factor": 2,
            "encoder_patch_size": 4,
            "image_processor_type": "Lfm2VlImageProcessorFast",
            "max_image_tokens": 16,
            "max_num_patches": 64,
            "max_pixels_tolerance": 2.0,
            "max_tiles": 6,
            "min_image_tokens": 4,
            "min_tiles": 2,
            "resample": 2,
            "rescale_factor": 1 / 255,
            "return_row_col_info": True,
            "size": {"height": 32, "width": 32},
            "tile_size": 32,
            "use_thumbnail": True,
        },
        (
            *("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
            *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7)),
        ),
        LFM2_TEMPLATE,
        {"image_token_id": "<image>"},
        fields={"downsample_factor": 2, "projector_hidden_size": 80, "projector_use_layernorm": True},
        processor={"processor_class": "Lfm2VlProcessor"},
        named={
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail": "<|img_thumbnail|>",
        },
    ),
    "qwen2_5_vl": VisionCase(
        "Qwen2_5_VL",
        {"rope_parameters": {**SECTIONS, "mrope_interleaved": False}, "tie_word_embeddings": False},
        {
            **{name: value for name, value in QWEN3_TOWER.items() if name != "num_position_embeddings"},
            "depth": 4,
            "hidden_act": "silu",
            "window_size": 16,
            "fullatt_block_indexes": [1, 3],
        },
        QWEN2_PREPROCESSOR,
        QWEN_SPECIALS,
        QWEN_TEMPLATE,
        QWEN_TOKENS,
    ),
    "qwen2_vl": VisionCase(
        "Qwen2VL",
        {"rope_parameters": {**SECTIONS, "mrope_interleaved": False}, "tie_word_embeddings": False},
        {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "mlp_ratio": 2,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "hidden_act": "quick_gelu",
        },
        QWEN2_PREPROCESSOR,
        QWEN_SPECIALS,
        QWEN_TEMPLATE,
        QWEN_TOKENS,
    ),
    "qwen3_5": VisionCase(
        "Qwen3_5",
        {
            "rope_parameters": {
                **SECTIONS,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.5,
            },
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        QWEN3_TOWER,
        QWEN3_PREPROCESSOR,
        QWEN_SPECIALS,
        QWEN_TEMPLATE,
        QWEN_TOKENS,
    ),
    "qwen3_vl": VisionCase(
        "Qwen3VL",
        {"rope_parameters": SECTIONS},
        {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]},
        QWEN3_PREPROCESSOR,
        QWEN_SPECIALS,
        QWEN_TEMPLATE,
        QWEN_TOKENS,
    ),
    "smolvlm": VisionCase(
        "SmolVLM",
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {**SIGLIP, "image_size": 32, "patch_size": 4, "max_image_size": {"longest_edge": 32}},
        {
            **HALF,
            "do_convert_rgb": True,
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 32},
            "processor_class": "SmolVLMProcessor",
            "resample": 1,
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": 128},
        },
        (
            *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
            *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
        ),
        SMOLVLM_TEMPLATE,
        {"image_token_id": "<image>"},
        fields={"scale_factor": 4, "tie_word_embeddings": False},
        processor={"image_seq_len": 4, "processor_class": "SmolVLMProcessor"},
    ),
}
"""By the `model_type` of config.json."""


def make_vision_checkpoint(
    directory: Path,
    family: str = "qwen3_vl",
    *,
    seed: int = 0,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> Path:
    """Write a checkpoint of one of `VISION_FAMILIES` into `directory` and return it; random weights, to which positions
    and norms matter. Further fields of its files are in `vision`, `text`, `fields` and `preprocessor`."""
    import torch

    case = VISION_FAMILIES[family]
    ids = write_tokenizer(directory, case)
    model = make_vision_model(family, ids, seed=seed, vision=vision, text=text, fields=fields)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    _write(directory / "generation_config.json", {"eos_token_id": [EOS_ID], "do_sample": False})
    _write(directory / "preprocessor_config.json", {**case.preprocessor, **(preprocessor or {})})
    if case.processor:
        _write(directory / "processor_config.json", case.processor)
    return directory


def make_vision_model(
    family: str,
    ids: Mapping[str, int],
    *,
    seed: int = 0,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Any:
    """Return the model in transformers, float32, for the ids of its special tokens."""
    import torch
    import transformers

    case = VISION_FAMILIES[family]
    settings = {
        "text_config": {**TEXT, **case.text, **(text or {})},
        "vision_config": {**case.vision, **(vision or {})},
        **{name: ids[token] for name, token in case.tokens.items()},
        **case.fields,
        **(fields or {}),
    }
    config = getattr(transformers, f"{case.name}Config")(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{case.name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            _randomize(torch, name, tensor)
    return model


def _randomize(torch: Any, name: str, tensor: Any) -> None:
    """Give a parameter values that the answer depends on; buffers of RoPE keep theirs."""
    if not tensor.is_floating_point() or "inv_freq" in name or "embed_scale" in name:
        return
    if name.endswith(("input_min", "output_min", "input_max", "output_max")):
        bound = 0.8 if ".input" in name else 1.5
        tensor.fill_(-bound if name.endswith("min") else bound)
    elif name.endswith(("std_scale", "layer_scalar")):
        tensor.copy_(1 + 0.1 * torch.randn_like(tensor))
    elif tensor.ndim < 2:
        tensor.add_(torch.randn_like(tensor), alpha=0.1)
    elif "position_embedding" in name or "pos_embed" in name:
        tensor.normal_(0.0, 0.3)
    elif "embed_tokens" in name:
        tensor.normal_(0.0, 0.5)
    else:
        inputs = tensor.shape[0] if name.endswith("mm_input_projection_weight") else tensor[0].numel()
        tensor.normal_(0.0, 1.5 / inputs**0.5)


def write_tokenizer(directory: Path, case: VisionCase) -> dict[str, int]:
    """Write the files of the tokenizer, and return the ids of its special tokens."""
    make_checkpoint(directory, layers=1, hidden=32, ffn=32, heads=2, kv_heads=1)
    (directory / "model.safetensors").unlink()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in case.specials])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(case.template, encoding="utf-8")
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"additional_special_tokens": list(case.specials), "extra_special_tokens": dict(case.named)}
    settings |= {"bos_token": "<bos>"} if "<bos>" in case.specials else {}
    del settings["chat_template"]
    _write(file, settings)
    ids = {name: tokenizer.token_to_id(name) for name in (*case.specials, *CHATML)}
    assert max(ids.values()) < VOCAB
    return ids


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(values), indent=2), encoding="utf-8")
