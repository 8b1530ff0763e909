"""Checkpoints of the families, one entry each with the differences from Llama's, and random weights for them.

Written from transformers' models, not from `workers.checkpoints.architectures`, which is tested with it.
"""

from tests.families.registered import (
    ARCHITECTURES,
    DENSE,
    FAMILIES,
    LATENT,
    MIXTURES,
    family_fields,
    random_weights,
)
from tests.families.weights import NamedTensors, RandomWeights, Tensors

__all__ = [
    "ARCHITECTURES",
    "DENSE",
    "FAMILIES",
    "LATENT",
    "MIXTURES",
    "NamedTensors",
    "RandomWeights",
    "Tensors",
    "family_fields",
    "random_weights",
]
