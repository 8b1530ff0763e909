"""The tensors of hybrid models as mlx-lm's converter writes them, in the layout and with the values of the originals.

mlx-lm keeps the weights of a convolution as [channels, taps, 1], and adds one to the norms of Qwen3.5 and Qwen3-Next,
where the originals have [channels, 1, taps] and norms around zero (`sanitize` of mlx_lm/models/lfm2.py, qwen3_5.py and
qwen3_next.py).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.wrapper import Wrapper
from workers.checkpoints.expert_stacks import StackLayout
from workers.checkpoints.quantization_config import Quantization
from workers.checkpoints.weights import SafetensorsWeights

CONVOLUTIONS = (".linear_attn.conv1d.weight", ".conv.conv.weight")
DELTA = ".linear_attn.conv1d.weight"
"""The convolution of models whose norms have one added."""
NORMS = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)


class ConvertedWeights(SafetensorsWeights):
    """The tensors of a checkpoint of mlx-lm, or of another one, which is left as it is."""

    def __init__(
        self,
        directory: Path,
        quantization: Quantization | None,
        wrapper: Wrapper | None = None,
        stacks: StackLayout = "halves",
    ) -> None:
        super().__init__(directory, quantization, wrapper, stacks)
        self._swapped = frozenset(self._find_swapped())
        self._shifted = any(name.endswith(DELTA) for name in self._swapped)

    def _find_swapped(self) -> Iterable[str]:
        """Find the convolutions whose taps are their second dimension."""
        for name in self:
            if name.endswith(CONVOLUTIONS):
                shape = super().shape(name)
                if len(shape) == 3 and shape[2] == 1 < shape[1]:
                    yield name

    def shape(self, name: str) -> tuple[int, ...]:
        shape = super().shape(name)
        return (shape[0], shape[2], shape[1]) if name in self._swapped else shape

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensor = super().__getitem__(name)
        if name in self._swapped:
            return np.ascontiguousarray(tensor.swapaxes(1, 2))
        if self._shifted and name.endswith(NORMS):
            return tensor.astype(np.float32) - np.float32(1)
        return tensor
