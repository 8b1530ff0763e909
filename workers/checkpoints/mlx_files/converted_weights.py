"""The tensors of hybrid models as mlx-lm's converter writes them, in the layout and with the values of the originals.

mlx-lm keeps the weights of a convolution as [channels, taps, 1], and adds one to the norms of Qwen3.5 and Qwen3-Next,
where the originals have [channels, 1, taps] and norms around zero (`sanitize` of mlx_lm/models/lfm2.py, qwen3_5.py,
qwen3_next.py, granitemoehybrid.py and nemotron_h.py). Of LFM2 with experts it renames the MLPs of dense layers, too
(lfm2_moe.py), and of GPT-NeoX all tensors (gpt_neox.py). Of latent attention it has a stack of the heads' matrices
(deepseek_v3.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.wrapper import Wrapper
from workers.checkpoints.expert_stacks import ExpertMatrix, StackLayout
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.quantization_config import Quantization
from workers.checkpoints.weights import FLOATS, SafetensorsWeights

CONVOLUTIONS = (".linear_attn.conv1d.weight", ".conv.conv.weight", ".mamba.conv1d.weight", ".mixer.conv1d.weight")
DELTA = ".linear_attn.conv1d.weight"
"""The convolution of models whose norms have one added."""
NORMS = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
HEADS = (".embed_q", ".unembed_out")
"""The stacks of the matrices of each head of latent attention."""
MLP = re.compile(r"((?!tower\.).+\.feed_forward\.)(gate_proj|up_proj|down_proj)((?:\..+)?)")
NEOX = re.compile(r"model\.(h\.\d+|embed_in|final_layer_norm|embed_out)((?:\..+)?)")
"""Names of GPT-NeoX, by mlx-lm."""
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
"""The matrices of an MLP of LFM2, by mlx-lm's names. Pixtral's tower has the latter by itself."""


class ConvertedWeights(SafetensorsWeights):
    """The tensors of a checkpoint of mlx-lm, or of another one, which is left as it is."""

    def __init__(
        self,
        directory: Path,
        quantization: Quantization | None,
        wrapper: Wrapper | None = None,
        stacks: StackLayout = "halves",
    ) -> None:
        if quantization is not None:
            overrides = {original_name(name): each for name, each in quantization.overrides.items()}
            quantization = replace(quantization, overrides=overrides)
        super().__init__(directory, quantization, wrapper, stacks)
        self._swapped = frozenset(self._find_swapped())
        self._shifted = any(name.endswith(DELTA) for name in self._swapped)

    def _locate(self) -> dict[str, Path]:
        """See `SafetensorsWeights._locate`."""
        where: dict[str, Path] = {}
        for stored, file in super()._locate().items():
            name = original_name(stored)
            if name in where:
                raise CheckpointError(file, stored, f"is there as {self._stored.get(name, name)}, too")
            if name != stored:
                self._stored[name] = self._stored.pop(stored, stored)
            where[name] = file
        return where

    def _find_swapped(self) -> Iterable[str]:
        """Find the convolutions whose taps are their second dimension."""
        for name in self:
            if name.endswith(CONVOLUTIONS):
                shape = super().shape(name)
                if len(shape) == 3 and shape[2] == 1 < shape[1]:
                    yield name

    def shape(self, name: str) -> tuple[int, ...]:
        shape = super().shape(name)
        if len(shape) == 3 and _of_heads(name):
            return (shape[0] * shape[1], shape[2])
        return (shape[0], shape[2], shape[1]) if name in self._swapped else shape

    def _read(
        self, name: str, place: ExpertMatrix | None = None, types: Mapping[str, np.dtype[Any]] = FLOATS
    ) -> NDArray[Any]:
        tensor = super()._read(name, place, types)
        return tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim == 3 and _of_heads(name) else tensor

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensor = super().__getitem__(name)
        if name in self._swapped:
            return np.ascontiguousarray(tensor.swapaxes(1, 2))
        if self._shifted and name.endswith(NORMS):
            return tensor.astype(np.float32) - np.float32(1)
        return tensor


def _of_heads(name: str) -> bool:
    """Return whether a tensor has a matrix of each head of latent attention."""
    return name.rpartition(".")[0].endswith(HEADS)


def original_name(name: str) -> str:
    """Return the original's name of a tensor or module that mlx-lm renames; others keep theirs."""
    if (neox := NEOX.fullmatch(name)) is not None:
        if neox[1] == "embed_out":
            return f"embed_out{neox[2]}"
        module = neox[1].replace("h.", "layers.") if neox[1].startswith("h.") else neox[1]
        return f"gpt_neox.{module}{neox[2]}"
    match = MLP.fullmatch(name)
    return name if match is None else f"{match[1]}{PARTS[match[2]]}{match[3]}"


def converted_name(name: str) -> str:
    """Return mlx-lm's name of a tensor of an MLP, the opposite of `original_name`."""
    for converted, original in PARTS.items():
        before, found, end = name.rpartition(f".feed_forward.{original}.")
        if found:
            return f"{before}.feed_forward.{converted}.{end}"
    return name
