"""What a checkpoint directory says about its model (Hugging Face layout); what cannot be served is refused by name."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workers.weights import CheckpointError, Quantization, Weights, parse_quantization, read_json

__all__ = [
    "DEFAULT_CONTEXT",
    "CheckpointError",
    "ModelConfig",
    "Quantization",
    "RopeScaling",
    "Weights",
    "config_digest",
    "open_weights",
    "resolve_model",
]

DEFAULT_CONTEXT = 4096
"""Tokens of one slot when nobody asks for more: KV memory is slots x context, and models state up to millions."""

MAX_SIZE = 1 << 24
"""Above any real layer count, width or vocabulary; keeps a hostile config from asking for absurd memory."""

Family = Literal["llama", "qwen2", "qwen3", "mistral"]
WeightDtype = Literal["float32", "float16", "bfloat16"]
Architecture = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
}
NEUTRAL: Mapping[str, float | list[int]] = {
    "attention_multiplier": 1,
    "attn_logit_softcapping": 0,
    "clip_qkv": 0,
    "embedding_multiplier": 1,
    "final_logit_softcapping": 0,
    "logit_scale": 1,
    "logits_scaling": 1,
    "no_rope_layers": [],
    "num_experts": 0,
    "num_local_experts": 0,
    "partial_rotary_factor": 1,
    "residual_multiplier": 1,
    "rope_interleaved": 0,
    "rotary_pct": 1,
    "scale_emb": 1,
    "use_mrope": 0,
}
"""Fields that change the model's mathematics, and the value (besides null and false) at which they do not."""
OTHER_FORMATS = ["consolidated*", "*/*"]
"""Files of a hub model that hold its weights again, for other programs."""
_DIGEST_EDGE = 1 << 20


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How RoPE frequencies are changed for contexts longer than the trained one.

    `linear` divides all by `factor`. `llama3` (Llama 3.1) divides the long wavelengths and interpolates between
    `original_max_positions / low_freq_factor` and `original_max_positions / high_freq_factor`.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-family decoder, from `config.json`."""

    family: Family
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    max_positions: int
    sliding_window: int | None
    """A position sees at most this many positions, itself included; None sees all."""
    dtype: WeightDtype
    quantization: Quantization | None

    @classmethod
    def from_dir(cls, path: Path) -> "ModelConfig":
        """Read `config.json`. Raises `CheckpointError` for what is missing, malformed or not supported."""
        return _parse(_Fields(path / "config.json"))

    def choose_context(self, requested: int) -> int:
        """Rows of one slot's cache: `requested`, or with 0 what the model states, at most `DEFAULT_CONTEXT`.

        Raises `CheckpointError` when the model cannot be run exactly at that length.
        """
        if not requested:
            return min(self.max_positions, DEFAULT_CONTEXT, self.sliding_window or DEFAULT_CONTEXT)
        if requested > self.max_positions:
            raise CheckpointError(
                "config.json", "max_position_embeddings", f"is {self.max_positions}, {requested} tokens were asked for"
            )
        if self.sliding_window is not None and requested > self.sliding_window:
            raise CheckpointError(
                "config.json",
                "sliding_window",
                f"attention windows are not supported: the context can be {self.sliding_window} at most, "
                f"{requested} tokens were asked for",
            )
        return requested


class _Fields:
    """Typed access to config.json that names the field in every error."""

    def __init__(self, file: Path, values: dict[str, Any] | None = None, prefix: str = "") -> None:
        self.file = file
        self.values = read_json(file) if values is None else values
        self._prefix = prefix

    def error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(self.file, self._prefix + name, problem)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
            raise self.error(name, f"{value!r} is not an integer from 1 to {MAX_SIZE}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(name, f"{value!r} is not a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"{value!r} is neither true nor false")
        return value

    def section(self, name: str) -> "_Fields | None":
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "is not an object")
        return _Fields(self.file, value, f"{self._prefix}{name}.")


def _family(fields: _Fields) -> Family:
    names = fields.values.get("architectures")
    if names is not None:
        if not isinstance(names, list) or len(names) != 1 or names[0] not in Architecture:
            raise fields.error("architectures", f"{names!r} is not supported, only one of {', '.join(Architecture)}")
        family = Architecture[names[0]]
    else:
        family = fields.values.get("model_type", "")
        if family not in Architecture.values():
            raise fields.error("model_type", f"{family!r} is not supported")
    return family  # type: ignore[return-value]


def _parse(fields: _Fields) -> ModelConfig:
    family = _family(fields)
    _refuse_unsupported(fields, family)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}")
    head_dim = fields.integer("head_dim", 128 if family == "qwen3" else max(1, hidden // heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"{head_dim} is odd; rotary positions need pairs")
    layers = fields.integer("num_hidden_layers")
    _check_layer_types(fields)
    attention_bias = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    theta, scaling = _rope(fields)
    return ModelConfig(
        family=family,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or family == "qwen2",
        o_bias=attention_bias,
        qk_norm=family == "qwen3",
        max_positions=fields.integer("max_position_embeddings", 2048),
        sliding_window=_sliding_window(fields, family, layers),
        dtype=_dtype(fields),
        quantization=parse_quantization(fields.file, fields.values),
    )


def _refuse_unsupported(fields: _Fields, family: Family) -> None:
    for name in ("hidden_act", "hidden_activation"):
        activation = fields.values.get(name)
        if activation not in (None, "silu", "swish"):
            raise fields.error(name, f"{activation!r} is not supported, only 'silu'")
    if fields.flag("mlp_bias", False):
        raise fields.error("mlp_bias", "biases in the MLP are not supported")
    if family in ("qwen2", "mistral") and fields.flag("attention_bias", family == "qwen2") != (family == "qwen2"):
        raise fields.error("attention_bias", f"is not supported for {family}, whose biases are fixed")
    for name, neutral in NEUTRAL.items():
        value = fields.values.get(name)
        if value is not None and value is not False and value != neutral:
            raise fields.error(name, f"{value!r} is not supported, only {neutral!r}")


def _check_layer_types(fields: _Fields) -> None:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.error("layer_types", "holds something else than 'full_attention' and 'sliding_attention'")


def _rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
    """RoPE's base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    plan = fields.section("rope_parameters")
    if plan is None:
        theta, plan = fields.number("rope_theta", 10000.0), fields.section("rope_scaling")
    else:
        if fields.values.get("rope_scaling") not in (None, plan.values):
            raise fields.error("rope_scaling", "says something else than rope_parameters")
        layered = next((name for name, value in plan.values.items() if isinstance(value, dict)), None)
        if layered is not None:
            raise plan.error(layered, "positions that differ between layers are not supported")
        theta = plan.number("rope_theta", fields.number("rope_theta", 10000.0))
    if plan is None:
        return theta, None
    if plan.values.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise plan.error("partial_rotary_factor", "is not supported, only 1")
    kind = plan.values.get("rope_type") or plan.values.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", plan.number("factor"))
    if kind == "llama3":
        low, high = plan.number("low_freq_factor"), plan.number("high_freq_factor")
        if low >= high:
            raise plan.error("high_freq_factor", f"{high} is not above low_freq_factor, {low}")
        original = plan.integer("original_max_position_embeddings")
        return theta, RopeScaling("llama3", plan.number("factor"), low, high, original)
    raise plan.error("rope_type", f"{kind!r} is not supported, only 'default', 'linear' and 'llama3'")


def _sliding_window(fields: _Fields, family: Family, layers: int) -> int | None:
    if fields.values.get("sliding_window") is None or family == "llama":
        return None
    window = fields.integer("sliding_window")
    if family == "mistral":
        return window
    # Qwen: the window holds for the layers from max_window_layers on, and only when it is switched on.
    if not fields.flag("use_sliding_window", False):
        return None
    if "sliding_attention" in (fields.values.get("layer_types") or ()):
        return window  # transformers 5 lists the layers, and goes by that
    first = fields.values.get("max_window_layers", 0)
    return None if isinstance(first, int) and first >= layers else window


def _dtype(fields: _Fields) -> WeightDtype:
    name: Any = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise fields.error("dtype", f"{name!r} is not supported, only float32, float16 and bfloat16")
    dtype: WeightDtype = name
    return dtype


def open_weights(path: Path) -> Weights:
    """The tensors of `path` by their Hugging Face names, read when asked for; MLX-quantized ones are dequantized.

    Raises `CheckpointError` for a missing or damaged file and for a tensor type that is not supported.
    """
    file = path / "config.json"
    return Weights(path, parse_quantization(file, read_json(file)))


def config_digest(path: Path) -> str:
    """32 hex digits that two directories share when they hold the same model: descriptions, tokenizer and weights.

    Weight files count with their size and their first and last MiB (names, shapes and a sample of the values): a
    whole read of a large model would take longer than loading it.
    """
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if not file.is_file() or file.suffix not in (".json", ".jinja", ".safetensors"):
            continue
        size = file.stat().st_size
        digest.update(json.dumps([file.name, size]).encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_DIGEST_EDGE))
            if size > _DIGEST_EDGE:
                stream.seek(max(_DIGEST_EDGE, size - _DIGEST_EDGE))
                digest.update(stream.read(_DIGEST_EDGE))
    return digest.hexdigest()[:32]


def resolve_model(path_or_hub_id: str) -> Path:
    """A local directory as it is; anything else is fetched from the Hugging Face hub (or found in its cache).

    Raises `CheckpointError` with a sentence for people when it is neither or the hub cannot be reached.
    """
    local = Path(path_or_hub_id).expanduser()
    if path_or_hub_id and local.is_dir():
        return local
    if path_or_hub_id and local.is_file():
        reason = "is a file; a model is a directory in Hugging Face layout, with config.json and safetensors"
        raise CheckpointError(path_or_hub_id, "", reason)
    parts = path_or_hub_id.split("/")
    if len(parts) != 2 or not all(parts) or path_or_hub_id.startswith((".", "~")):
        raise CheckpointError(path_or_hub_id, "", "there is no such directory, and it is not a hub id like ORG/NAME")
    from huggingface_hub import snapshot_download  # slow to import and only needed here

    patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(path_or_hub_id, allow_patterns=patterns, ignore_patterns=OTHER_FORMATS))
    except Exception as error:  # the hub client lets its transport's own errors through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            path_or_hub_id,
            "",
            "is not a local directory and could not be fetched from the Hugging Face hub "
            f"(no network, no such model, or it needs a login): {reason}",
        ) from error
