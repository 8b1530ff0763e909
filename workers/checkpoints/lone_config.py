"""Description of a model whose family Baton does not describe, as far as config.json has it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from workers.checkpoints.architectures.config import DEFAULT_CONTEXT
from workers.checkpoints.architectures.fields import MAX_SIZE, Fields
from workers.checkpoints.documents import read_fields
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.weight_size import ITEM_BYTES
from workers.errors import LoadRefused
from workers.precision import Dtype, KvDtype, Quantize, WeightDtype, WindowCache

WEIGHTS = "model*.safetensors"
"""The files that mlx-lm reads."""
POSITIONS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length", "n_positions", "n_ctx")
LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
KV_HEADS = ("num_key_value_heads", "multi_query_group_num", "num_kv_heads", *HEADS)
WIDTH = ("hidden_size", "n_embd", "d_model", "model_dim")
LATENT = frozenset(
    {
        *("bailing_hybrid", "bailing_moe_v3", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"),
        *("joyai_llm_flash", "kimi_k2", "kimi_k25", "kimi_k3", "kimi_linear", "kimi_vl", "longcat_flash"),
        *("longcat_flash_ngram", "mistral4"),
    }
)
"""Families of which mlx-lm keeps the latent vectors of multi-head latent attention."""
CODE = "names code that comes with the checkpoint, which Baton does not run: take another checkpoint"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoneConfig:
    """The description of a model that runs alone: one sequence at a time, by mlx-lm's module for its family."""

    family: str
    """`model_type`."""
    max_positions: int
    """The context that the model states, or for one that states none the one that was asked for."""
    dtype: WeightDtype
    widths: str
    """Bits of quantized weights, as in `RunnerCapabilities.quantization`."""
    quantized: bool
    row_bytes: int
    """Bytes of the KV cache of one token, rather too many than too few; 0 if unknown."""
    mtp: bool = False
    mtp_layers: int = 0

    @classmethod
    def from_dir(cls, path: Path, context: int = 0) -> "LoneConfig":
        """Read `config.json`; `context` was asked for. Raises `CheckpointError` for a checkpoint that comes with code
        of its own, which is never run, and for what is malformed."""
        fields = read_fields(path)
        if fields.get("model_file") is not None:
            raise fields.error("model_file", CODE)
        family = fields.get("model_type")
        if not isinstance(family, str):
            raise fields.error("model_type", f"{family!r} is not the name of a family")
        text = fields.section("text_config") or fields
        stated = first_number(text, POSITIONS) or first_number(fields, POSITIONS)
        dtype = _dtype(fields, text)
        quantization = fields.get("quantization") or fields.get("quantization_config")
        bits = quantization.get("bits") if isinstance(quantization, dict) else None
        return cls(
            family=family,
            max_positions=stated or max(context, DEFAULT_CONTEXT),
            dtype=dtype,
            widths=f"int{bits}" if bits in (4, 8) else "",
            quantized=quantization is not None,
            row_bytes=_row_bytes(family, text, ITEM_BYTES[dtype]),
        )

    def choose_context(self, requested: int) -> int:
        """Choose the tokens of the sequence as `ModelConfig.choose_context` does, and raise what it raises."""
        if requested == 1:
            raise LoadRefused("context: 1 token leaves no room for an answer, take 2 or more")
        if requested > self.max_positions:
            problem = f"is {self.max_positions}, less than the context of {requested} tokens: lower --context"
            raise CheckpointError("config.json", POSITIONS[0], problem)
        return requested or min(self.max_positions, DEFAULT_CONTEXT)

    def choose_quantization(self, requested: Quantize) -> Quantize:
        """Check the requested quantization. Raises `CheckpointError` when the checkpoint is quantized already."""
        if requested != "none" and self.quantized:
            problem = f"the model is quantized already: leave quantize={requested} out"
            raise CheckpointError("config.json", "quantization", problem)
        return requested

    def check(self, *, kv_dtype: KvDtype, window_cache: WindowCache, dtype: Dtype, embeddings: bool) -> None:
        """Raise `LoadRefused` for a setting that has no effect on a model that runs alone."""
        why = f"is not supported for {self.family}, which only mlx-lm describes"
        if kv_dtype != "auto":
            raise LoadRefused(f"kv_dtype: {kv_dtype} {why}: leave it out")
        if window_cache != "full":
            raise LoadRefused(f"window_cache: {window_cache} {why}: leave it out")
        if embeddings:
            raise LoadRefused(f"embeddings: {why}: leave it out")
        if dtype != "auto" and self.quantized:
            raise LoadRefused(f"dtype: {dtype} {why} and is quantized: leave it out")

    def check_code(self, path: Path) -> None:
        """Raise `CheckpointError` if the model needs code that comes with the checkpoint: mlx-lm has no module for it.
        Where it has one, code that transformers would run is left alone."""
        fields = read_fields(path)
        if fields.get("auto_map") is not None:
            raise fields.error("auto_map", CODE)

    def weight_bytes(self, path: Path, dtype: Dtype) -> int:
        """Return the bytes of the weights: those of their files, wider with a wider `dtype`. Raises `CheckpointError`
        if there are none."""
        files = sorted(path.glob(WEIGHTS))
        if not files:
            raise CheckpointError(
                path, "", f"has no weights, {WEIGHTS}: a model is a directory with config.json and these"
            )
        for file in files:
            if not file.is_file():
                raise CheckpointError(file, "", "is not a regular file: replace it by one")
        wider = 2 if dtype == "float32" and ITEM_BYTES[self.dtype] == 2 and not self.quantized else 1
        return wider * sum(file.stat().st_size for file in files)

    def tried(self, path: Path, device: str, compute: Callable[[], _Result]) -> _Result:
        """Return what the first call of a model returns. Raises `CheckpointError` if it fails: mlx-lm has another
        model, or MLX lacks an operation of it for this device."""
        try:
            return compute()
        except Exception as error:
            advice = ": try --dtype float32" if device == "cpu" and self.dtype != "float32" else ""
            problem = f"{self.family} cannot be computed by mlx-lm on {device}: {type(error).__name__}: {error}{advice}"
            raise CheckpointError(path / "config.json", "model_type", problem) from error


def first_number(fields: Fields, names: tuple[str, ...]) -> int:
    """Return the first of these fields that has a number, or the largest of a list of them; 0 if there is none."""
    for name in names:
        value: Any = fields.get(name)
        values = value if isinstance(value, list) else [value]
        known = [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each > 0]
        if known:
            return min(max(known), MAX_SIZE)
    return 0


def _row_bytes(family: str, fields: Fields, itemsize: int) -> int:
    layers, heads, width = first_number(fields, LAYERS), first_number(fields, KV_HEADS), first_number(fields, WIDTH)
    values = first_number(fields, ("v_head_dim",))
    if values and (latent := first_number(fields, ("kv_lora_rank",))):
        # Some modules of mlx-lm keep the latent vector of a token, others its keys and values of all heads.
        keys = first_number(fields, ("qk_nope_head_dim",)) + first_number(fields, ("qk_rope_head_dim",))
        return layers * (latent + keys if family in LATENT else heads * (keys + values)) * itemsize
    lanes = first_number(fields, ("head_dim",)) or (width // max(1, first_number(fields, HEADS)))
    return 2 * layers * heads * lanes * itemsize


def _dtype(fields: Fields, text: Fields) -> WeightDtype:
    """Read the type of the weights; bfloat16 if none is stated, as most are published."""
    name = next(
        (value for each in (fields, text) for key in ("dtype", "torch_dtype") if (value := each.get(key))), None
    )
    if name is None:
        return "bfloat16"
    if not isinstance(name, str) or name not in ITEM_BYTES:
        raise fields.error("dtype", f"{name!r} is not supported, only float32, float16 and bfloat16")
    dtype: WeightDtype = name
    return dtype
