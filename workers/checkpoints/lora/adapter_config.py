"""The description of a LoRA adapter: adapter_config.json of PEFT or of mlx-lm.

PEFT: https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
mlx-lm: https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from workers.checkpoints.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MAX_RANK, read_adapter
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.json_files import read_json

PEFT_WEIGHTS = "adapter_model.safetensors"
MAX_PATTERNS = 4096
"""Most entries of `rank_pattern` and of `alpha_pattern`."""
MAX_PATTERN = 256
"""Characters of one."""
MAX_BRANCHES = 3
"""Repetitions and groups of choices in one."""
FLAGS = ("use_dora", "lora_bias", "fan_in_fan_out", "use_qalora")
"""Fields of PEFT that change what an adapter computes, and must be false."""
LISTS = (
    "modules_to_save",
    "target_parameters",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
)
"""Such fields that must be empty."""
Number = TypeVar("Number", int, float)
UNCHANGED = ("gaussian", "eva", "orthogonal")
"""The values of `init_lora_weights` beside true and false that leave the weights of the model as they are."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The ranks and scales of an adapter's modules."""

    layout: Literal["peft", "mlx"]
    file: Path
    """The file of its tensors."""
    rank: int
    alpha: float
    """The numerator of the scale in PEFT's layout, the scale itself in mlx-lm's."""
    ranks: Mapping[str, int]
    """Ranks of some modules, by patterns of their names."""
    alphas: Mapping[str, float]
    """Likewise."""
    rslora: bool = False
    """The scale is alpha / sqrt(rank) (https://arxiv.org/abs/2312.03732), not alpha / rank."""

    def rank_of(self, module: str) -> int:
        """Return the rank of a module."""
        return _by_pattern(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of what the adapter adds to the output of a module."""
        if self.layout == "mlx":
            return self.alpha
        alpha, rank = _by_pattern(self.alphas, module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def read_adapter_config(path: Path, max_rank: int) -> AdapterConfig:
    """Read the description of an adapter of ranks up to `max_rank`. Raises `CheckpointError` that names the file and
    the field, also for an adapter that is no plain LoRA."""
    file = path / ADAPTER_CONFIG
    fields = Fields(file, read_json(file))
    if "peft_type" not in fields.values:
        mlx = read_adapter(path)
        _check_rank(fields, "lora_parameters.rank", mlx.rank, max_rank)
        return AdapterConfig("mlx", path / ADAPTER_WEIGHTS, mlx.rank, mlx.scale, {}, {})
    _check_kind(fields)
    ranks, alphas = fields.section("rank_pattern"), fields.section("alpha_pattern")
    config = AdapterConfig(
        "peft",
        path / PEFT_WEIGHTS,
        fields.integer("r", most=MAX_RANK),
        fields.number("lora_alpha"),
        {} if ranks is None else {name: ranks.integer(name, most=MAX_RANK) for name in _patterns(ranks)},
        {} if alphas is None else {name: alphas.number(name) for name in _patterns(alphas)},
        fields.flag("use_rslora", False),
    )
    _check_rank(fields, "r", config.rank, max_rank)
    for name, rank in config.ranks.items():
        _check_rank(fields, f"rank_pattern.{name}", rank, max_rank)
    if not config.file.is_file():
        raise fields.error("peft_type", f"there is no {PEFT_WEIGHTS} beside it: save the adapter as safetensors")
    return config


def _check_kind(fields: Fields) -> None:
    """Refuse an adapter that is no plain LoRA."""
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise fields.error("peft_type", f"{kind!r} is not supported, only LORA")
    for name in FLAGS:
        if fields.flag(name, False):
            raise fields.error(name, "true is not supported: merge the adapter into the model")
    for name in LISTS:
        if fields.get(name):
            raise fields.error(name, "is not supported: merge the adapter into the model, or train it without")
    if (bias := fields.get("bias", "none")) != "none":
        raise fields.error("bias", f"{bias!r} is not supported, only none: merge the adapter into the model")
    start = fields.get("init_lora_weights", True)
    if isinstance(start, str) and start not in UNCHANGED:
        raise fields.error("init_lora_weights", f"{start!r} changes the model itself: convert it to a plain LoRA")


def _patterns(section: Fields) -> list[str]:
    """Return the patterns of a section; each must be a regular expression that no name takes long to compare with."""
    if len(section.values) > MAX_PATTERNS:
        raise section.error("", f"has {len(section.values)} entries, more than {MAX_PATTERNS}")
    for name in section.values:
        try:
            re.compile(name)
        except re.error as error:
            raise section.error(name, f"is no regular expression: {error}") from error
        if _is_slow(name):
            problem = f"has a repeated group, flags, or over {MAX_PATTERN} characters or {MAX_BRANCHES} repetitions"
            raise section.error(name, f"{problem}: write the names of the modules")
    return list(section.values)


def _is_slow(pattern: str) -> bool:
    """A comparison may try a number of ways that grows faster than the `MAX_BRANCHES`th power of a name's length:
    Python's expressions hold the interpreter, and so the worker, until they have tried all."""
    plain = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern).replace("(?:", "(")
    choices, open_groups = 0, [False]
    for char in plain:
        if char == "(":
            open_groups.append(False)
        elif char == "|":
            open_groups[-1] = True
        elif char == ")":
            choices += open_groups.pop()
    repetitions = len(re.findall(r"[*+?{]", plain))
    return (
        len(pattern) > MAX_PATTERN
        or re.search(r"\)[*+?{]|\(\?", plain) is not None
        or repetitions + choices + open_groups[0] > MAX_BRANCHES
    )


def _check_rank(fields: Fields, name: str, rank: int, max_rank: int) -> None:
    if rank > max_rank:
        raise fields.error(name, f"{rank} is more than max_lora_rank, {max_rank}: set --max-lora-rank {rank}")


def _by_pattern(patterns: Mapping[str, Number], module: str, default: Number) -> Number:
    """Return the value of the first pattern that matches the end of a module's name, as PEFT's `get_pattern_key`
    finds it."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
