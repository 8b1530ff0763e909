"""A checkpoint in Hugging Face layout as a GGUF file, so that llama.cpp can run the same weights.

    python bench/peers/weights/to_gguf.py CHECKPOINT FILE.gguf [--kind bf16]

Llama, Mistral, Qwen2 and Qwen3 with a byte-level BPE tokenizer, after `convert_hf_to_gguf.py` of llama.cpp. Kinds are
f32, bf16, q8_0 and q4_0; every matrix gets the same kind, embedding and head included, norms and biases stay float32.
llama.cpp's own `llama-quantize` would keep the head of a Q4_0 model at 6 bits: this way more is quantized, and the file
is the fastest of its kind. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. With --smoke it
converts a tiny model into every kind.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.harness.command_line import command_line, parsed
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.json_files import MAX_TABLE_BYTES, read_json

try:
    import gguf
except ImportError:
    raise SystemExit("GGUF files need gguf: pip install -e '.[bench]'") from None

Kind = Literal["f32", "bf16", "q8_0", "q4_0"]
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
LAYER = (
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
)
"""GGUF's and Hugging Face's names of a layer's modules."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file and where it comes from."""

    name: str
    source: str
    heads: int = 0
    """The heads of a query or key projection, whose rotary pairs llama.cpp stores side by side; 0 leaves the rows as
    they are."""


def convert(checkpoint: Path, file: Path, kind: Kind = "bf16") -> None:
    """Write `file`. Raises `CheckpointError` for a model that cannot be read or that this converter does not know."""
    config = ModelConfig.from_dir(checkpoint)
    _refuse(checkpoint, config)
    weights = open_weights(checkpoint)
    tensors = [tensor for tensor in _tensors(config) if tensor.source in weights]
    half = file.with_name(f"{file.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(half, ARCHITECTURES[config.family])
    _describe(writer, config, kind)
    _add_tokenizer(writer, checkpoint, config.vocab_size)
    for tensor in tensors:  # one at a time is in memory
        data, kind_of = _encode(weights[tensor.source], tensor, kind)
        writer.add_tensor_info(tensor.name, data.shape, data.dtype, data.nbytes, kind_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_encode(weights[tensor.source], tensor, kind)[0])
    writer.close()
    half.rename(file)


def _refuse(checkpoint: Path, config: ModelConfig) -> None:
    file = checkpoint / "config.json"
    if config.family not in ARCHITECTURES:
        raise CheckpointError(file, "architectures", f"{config.family} is not converted")
    if config.ropes[0].scaling is not None:
        raise CheckpointError(file, "rope_scaling", "is not converted")
    if config.o_bias:
        raise CheckpointError(file, "attention_bias", "is not converted")
    if any(layer.window is not None for layer in config.plan):
        raise CheckpointError(file, "sliding_window", "is not converted")


def _tensors(config: ModelConfig) -> Iterator[GgufTensor]:
    yield GgufTensor("token_embd.weight", "model.embed_tokens.weight")
    # Hugging Face's rotary pairs are (i, i + half); llama.cpp keeps that for Qwen and pairs neighbours for Llama.
    pairs = {"attn_q": config.heads, "attn_k": config.kv_heads} if ARCHITECTURES[config.family] == "llama" else {}
    for layer in range(config.layers):
        for name, source in LAYER:
            for part in ("weight", "bias"):
                yield GgufTensor(
                    f"blk.{layer}.{name}.{part}", f"model.layers.{layer}.{source}.{part}", pairs.get(name, 0)
                )
    yield GgufTensor("output_norm.weight", "model.norm.weight")
    if not config.tie_embeddings:
        yield GgufTensor("output.weight", "lm_head.weight")


def _encode(values: NDArray[Any], tensor: GgufTensor, kind: Kind) -> tuple[NDArray[Any], gguf.GGMLQuantizationType]:
    plain = values.astype(np.float32)
    if tensor.heads:
        split = plain.reshape(tensor.heads, 2, -1, *plain.shape[1:])
        plain = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(plain.shape)
    type_ = TYPES[kind] if plain.ndim == 2 else gguf.GGMLQuantizationType.F32
    return (plain if type_ is TYPES["f32"] else gguf.quantize(plain, type_)), type_


def _describe(writer: gguf.GGUFWriter, config: ModelConfig, kind: Kind) -> None:
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.ropes[0].theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, vocab_size: int) -> None:
    """The vocabulary, filled up with unused tokens; prompts come as token ids, so how text is split does not matter."""
    file = checkpoint / "tokenizer.json"
    tokenizer = read_json(file, MAX_TABLE_BYTES)
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE":
        raise CheckpointError(file, "model.type", f"{model.get('type')!r} is not converted, only 'BPE'")
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for token, number in model["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_add_bos_token(False)
    end = read_json(checkpoint / "config.json").get("eos_token_id")
    if isinstance(end, int):
        writer.add_eos_token_id(end)


def write(checkpoint: Path, file: Path, kind: Kind) -> None:
    """Convert, and print what was written."""
    convert(checkpoint, file, kind)
    tensors = gguf.GGUFReader(file).tensors
    print(f"{file}: {len(tensors)} tensors, {kind}, {file.stat().st_size / 1e6:.2f} MB", flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a folder in Hugging Face layout")
    parser.add_argument("file", type=Path, nargs="?", help="to write")
    parser.add_argument("--kind", choices=get_args(Kind), default="bf16", help="of the matrices")
    args = parsed(parser, words, smoke={})
    if args.file is None and not args.smoke:
        parser.error("the following arguments are required: checkpoint, file")
    return args


def main() -> None:
    args = arguments()
    if not args.smoke:
        write(args.checkpoint, args.file, args.kind)
        return
    with tempfile.TemporaryDirectory() as name:
        checkpoint = make_checkpoint(Path(name) / "model", dtype="bfloat16")
        for kind in get_args(Kind):
            write(checkpoint, Path(name) / f"{kind}.gguf", kind)


if __name__ == "__main__":
    main()
