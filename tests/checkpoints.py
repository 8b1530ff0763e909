"""Small random-weight checkpoints in Hugging Face layout, made from a seed in well under a second.

The layout is the one of https://huggingface.co/docs/transformers (config.json, model.safetensors or shards with an
index, tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json); the quantized variant is
mlx-lm's (affine groups along the input axis, packed low bits first into uint32, `weight`/`scales`/`biases`).

Weights are sampled so that greedy decoding does not fall into a loop: unit-gain linears, sharpened queries and keys and
a small embedding, so that the residual stream is dominated by what the layers write. Norm weights and biases are never
the identity, so that leaving one out shows. `tests/families` describes the families.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.families import ARCHITECTURES, FAMILIES, Tensors, family_fields, random_weights

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = SPECIALS.index("<|im_end|>")
LLAMA3_SCALING: Mapping[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""As in Llama 3.x, with a threshold low enough that short sequences pass it."""
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog while the seven wizards quietly boxed five dozen jugs of liquor. "
    "The capital of France is Paris, the capital of Spain is Madrid and the capital of Japan is Tokyo. "
    "A worker owns one model; the gateway routes each request to a worker and streams the answer back to the client. "
    "When a worker dies, its requests are played again on another worker, and the stream goes on with the same tokens. "
    'Numbers: 1 2 3 10 20 30 100 200 300 1000. JSON: {"name": "Ada", "age": 36, "tags": ["a", "b"]}.\n'
    "Un cœur simple, ein schöner Tag, una mañana fría, добрый день, こんにちは世界, 你好世界, 🙂🙃.\n"
    "Questions: what is the answer? where does the request go? which slot holds the prompt? why is the queue bounded?\n"
    "def answer(question: str) -> str:\n    return question.strip().lower()\n"
)
_NUMPY_DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_FORMAT_DTYPES: Mapping[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}


@functools.cache
def _tokenizer_json(vocab: int) -> str:
    """A byte-level BPE tokenizer of at most `vocab` tokens, trained on `TRAINING_TEXT`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=alphabet,
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    return str(tokenizer.to_str())


def make_tokenizer(directory: Path, vocab: int = 512) -> None:
    """Write the tokenizer's files. `vocab` must hold the 256 bytes and the specials.

    Raises ValueError when it does not.
    """
    if vocab < 256 + len(SPECIALS):
        raise ValueError(f"vocab: {vocab} tokens do not hold the 256 bytes and {len(SPECIALS)} specials")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(_tokenizer_json(vocab), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 32768,
            "clean_up_tokenization_spaces": False,
            "additional_special_tokens": list(SPECIALS),
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(directory / "generation_config.json", {"eos_token_id": [EOS_ID], "do_sample": False})


def make_checkpoint(
    directory: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 128,
    vocab: int = 512,
    tied: bool = True,
    attention_bias: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    sharded: bool = False,
    quantized_bits: int | None = None,
    group_size: Literal[32, 64] = 32,
    max_positions: int = 2048,
    fields: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint into `directory` and return it. The same arguments give the same bytes.

    `attention_bias` gives the attention's four matrices biases (those of qwen2 always have three, and some families
    none); `rope_scaling` goes into config.json as it is (`LLAMA3_SCALING` is one), and so do `fields`, in place of
    what the family has; `sharded` writes one file a layer and an index; `quantized_bits` quantizes every matrix, the
    embedding and the head included, in groups of `group_size`.
    """
    make_tokenizer(directory, vocab)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": 0,
    }
    config |= family_fields(family, layers, attention_bias=attention_bias)
    if rope_scaling is not None:
        config["rope_scaling"] = dict(rope_scaling)
    config |= fields or {}
    live = Tokenizer.from_str(_tokenizer_json(vocab)).get_vocab_size()
    tensors = random_weights(config, live, np.random.default_rng(seed))
    tensors = {name: tensor.astype(_NUMPY_DTYPES[dtype]) for name, tensor in tensors.items()}
    if quantized_bits is not None:
        quantization = {"group_size": group_size, "bits": quantized_bits, "mode": "affine"}
        tensors = _quantize_all(stack_experts(tensors), quantized_bits, group_size)
        config |= {"quantization": quantization, "quantization_config": quantization}
    absent = FAMILIES[family].without
    _write_json(directory / "config.json", {name: value for name, value in config.items() if name not in absent})
    _write_weights(directory, tensors, sharded=sharded)
    return directory


def quantize(weight: NDArray[Any], bits: int, group_size: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Quantize in MLX's affine mode: (packed uint32 [rows, columns * bits / 32], scales, biases [rows, groups]).

    A value is `scale * q + bias`; scales and biases keep the weight's dtype. `columns` must be a multiple of
    `group_size`. After https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html.
    """
    rows, columns = weight.shape
    groups = weight.astype(np.float32).reshape(rows, columns // group_size, group_size)
    low, high = groups.min(-1), groups.max(-1)
    scales = np.maximum((high - low) / (2**bits - 1), 1e-7).astype(weight.dtype)
    biases = low.astype(weight.dtype)
    levels = np.rint((groups - biases.astype(np.float32)[..., None]) / scales.astype(np.float32)[..., None])
    levels = np.clip(levels, 0, 2**bits - 1).astype(np.uint8).reshape(rows, columns, 1)
    stream = (levels >> np.arange(bits, dtype=np.uint8) & 1).reshape(rows, -1)
    return np.packbits(stream, axis=1, bitorder="little").view("<u4"), scales, biases


def stack_experts(tensors: Tensors) -> Tensors:
    """Stack the matrices of a layer's experts as mlx-lm does: one tensor each, such as `switch_mlp.up_proj.weight`."""
    names = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    out: Tensors = {}
    stacks: dict[str, list[NDArray[Any]]] = {}
    for name, tensor in _divided_mlps(tensors).items():
        block, experts, rest = name.partition(".experts.")
        if ".block_sparse_moe.input_linear" in name:
            half, block = tensor.shape[1] // 2, name.removesuffix("input_linear.weight")
            out |= {f"{block}switch_mlp.gate_proj.weight": tensor[:, :half]}
            out |= {f"{block}switch_mlp.up_proj.weight": tensor[:, half:]}
        elif ".block_sparse_moe.output_linear" in name:
            out[f"{name.removesuffix('output_linear.weight')}switch_mlp.down_proj.weight"] = tensor
        elif not experts:
            out[name] = tensor
        else:
            part = rest.split(".")[1]
            mine = {"up_proj": "fc1", "down_proj": "fc2"} if block.endswith(".mixer") else names  # without a gate
            stacks.setdefault(f"{block}.switch_mlp.{mine.get(part, part)}.weight", []).append(tensor)
    return out | {name: np.stack(parts) for name, parts in stacks.items()}


def _divided_mlps(tensors: Tensors) -> Tensors:
    """Divide the MLPs of Granite 4 without experts as mlx-lm does."""
    if any("block_sparse_moe" in name for name in tensors):
        return tensors
    out: Tensors = {}
    for name, tensor in tensors.items():
        if ".shared_mlp.input_linear" in name:
            for part, rows in zip(("gate_proj", "up_proj"), np.split(tensor, 2), strict=True):
                out[name.replace("shared_mlp.input_linear", f"mlp.{part}")] = rows
        else:
            out[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = tensor
    return out


def _quantize_all(tensors: Tensors, bits: int, group_size: int) -> Tensors:
    out: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] % group_size:
            out[name] = tensor
            continue
        parts = quantize(tensor.reshape(-1, tensor.shape[-1]), bits, group_size)
        stem = name.removesuffix("weight")
        for part, value in zip(("weight", "scales", "biases"), parts, strict=True):
            out[stem + part] = value.reshape(*tensor.shape[:-1], -1)
    return out


def _write_weights(directory: Path, tensors: Tensors, *, sharded: bool) -> None:
    if not sharded:
        write_safetensors(directory / "model.safetensors", tensors)
        return
    shards: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        key = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        shards.setdefault(key, {})[name] = tensor
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards.values(), start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(directory / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(directory / "model.safetensors.index.json", index)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write one file of the format at https://github.com/huggingface/safetensors#format.

    By hand, because `safetensors.numpy` writes bfloat16 in some versions only.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        ends = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": _FORMAT_DTYPES[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": ends}
        offset += tensor.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
