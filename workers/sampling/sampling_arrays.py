"""Sampling parameters of the rows of a call, as arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workers.sampling.fixed_point import MIN_TEMPERATURE
from workers.sampling.noise import Array
from workers.sampling.sample_spec import SampleSpec


class SamplingArrays(NamedTuple):
    """Sampling parameters of the rows of a call: arrays [B] of the caller's namespace."""

    temperature: Array
    """float32, as are `top_p` and `min_p`."""
    top_k: Array
    """int32."""
    top_p: Array
    min_p: Array
    seed_low: Array
    """uint32, as are `seed_high` and `position`."""
    seed_high: Array
    position: Array
    typical_p: Array = None
    """float32, as are those of XTC. All three are None where no row uses one of them."""
    xtc_probability: Array = None
    xtc_threshold: Array = None

    @property
    def common(self) -> "SamplingArrays":
        """The arrays without typical_p and XTC, for calls in which no row uses them: sampling takes less work."""
        return self._replace(typical_p=None, xtc_probability=None, xtc_threshold=None)

    @property
    def given(self) -> tuple[Array, ...]:
        """The arrays that are not None."""
        return tuple(array for array in self if array is not None)


def sampling_arrays(specs: Sequence[SampleSpec]) -> SamplingArrays:
    """Gather the parameters of rows into numpy arrays."""
    samplings = [spec.sampling for spec in specs]
    # A device may flush smaller numbers to 0, which would mean greedy.
    heats = [
        max(sampling.temperature, MIN_TEMPERATURE) if sampling.temperature > 0.0 else 0.0 for sampling in samplings
    ]
    return SamplingArrays(
        np.array(heats, np.float32),
        np.array([sampling.top_k for sampling in samplings], np.int32),
        np.array([sampling.top_p for sampling in samplings], np.float32),
        np.array([sampling.min_p for sampling in samplings], np.float32),
        np.array([sampling.seed & 0xFFFFFFFF for sampling in samplings], np.uint32),
        np.array([sampling.seed >> 32 for sampling in samplings], np.uint32),
        np.array([spec.position for spec in specs], np.uint32),
        np.array([sampling.typical_p for sampling in samplings], np.float32),
        np.array([sampling.xtc_probability for sampling in samplings], np.float32),
        np.array([sampling.xtc_threshold for sampling in samplings], np.float32),
    )
