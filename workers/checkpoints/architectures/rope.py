"""Rotary position embeddings (https://arxiv.org/abs/2104.09864) and the scaling of their frequencies for long contexts.

The formulas are those of transformers' modeling_rope_utils.py; the tests compare them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear scaling: all frequencies are divided by `factor`."""

    factor: float

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        return rope.plain() / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high ones stay, those between are interpolated.

    The band is from `original / high_freq_factor` to `original / low_freq_factor` positions.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int
    """Positions of the first training."""

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        plain = rope.plain()
        turns = self.original * plain / (2 * np.pi)
        blend = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return (1 - blend) * plain / self.factor + blend * plain, 1.0


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (https://arxiv.org/abs/2309.00071): a ramp of factors over the lanes, and sharper attention."""

    factor: float
    original: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """The ends of the ramp are rounded to whole lanes."""

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        plain = rope.plain()
        low, high = self._lane(rope, self.beta_fast), self._lane(rope, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.dims - 1)
        ramp = np.clip((np.arange(rope.dims // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        return plain / self.factor * ramp + plain * (1 - ramp), self.attention_factor

    def _lane(self, rope: "Rope", rotations: float) -> float:
        """The lane that makes so many rotations over the original positions."""
        return rope.dims * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (https://arxiv.org/abs/2402.13753): a factor for each pair of lanes, from a short or a long set.

    The long set is for contexts beyond the original positions. The context of a slot chooses it, not the length of a
    request: keys that were cached with one set cannot be attended to with the other.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    attention_factor: float
    long_attention_factor: float | None = None
    """The factor beside the long set, where it is another one."""

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        if context <= self.original:
            return rope.plain() / np.array(self.short), self.attention_factor
        factor = self.attention_factor if self.long_attention_factor is None else self.long_attention_factor
        return rope.plain() / np.array(self.long), factor


@dataclass(frozen=True, slots=True)
class Proportional:
    """Gemma 4's: only the first `pairs` of all pairs rotate, with the frequencies of a head that rotates whole. The
    others have a frequency of zero."""

    pairs: int
    factor: float = 1.0

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        return np.where(np.arange(rope.dims // 2) < self.pairs, rope.plain() / self.factor, 0.0), 1.0


@dataclass(frozen=True, slots=True)
class Ntk:
    """NTK-aware scaling as Alibaba-NLP's GTE has it, whatever the context: the base and all periods grow
    (https://kexue.fm/archives/9706)."""

    factor: float

    def scale(self, rope: "Rope", context: int) -> tuple[Frequencies, float]:
        return Rope(rope.theta * self.factor, rope.dims).plain() / self.factor ** (2 / rope.dims), 1.0


Scaling = Linear | Llama3 | Yarn | LongRope | Proportional | Ntk


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding of one kind of layers."""

    theta: float
    dims: int
    """Lanes of a head that are rotated: the first ones. A pair is a lane and the one `dims / 2` behind it."""
    scaling: Scaling | None = None

    def plain(self) -> Frequencies:
        """Radians per position of each pair, unscaled: float64 [dims / 2]."""
        return self.theta ** -(np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)

    def frequencies(self, context: int) -> tuple[NDArray[np.float32], float]:
        """Radians per position, float32 [dims / 2], and the factor of cos and sin, for slots of `context` rows."""
        frequencies, factor = (self.plain(), 1.0) if self.scaling is None else self.scaling.scale(self, context)
        return frequencies.astype(np.float32), factor
