"""The precisions of weights that benchmarks compare, and what each is called."""

from dataclasses import dataclass

from bench.peers.weights.fp4 import Fp4Mode
from bench.peers.weights.to_gguf import Kind


@dataclass(frozen=True, slots=True)
class Precision:
    """The engine's settings, the equivalent GGUF type, and the share of greedy tokens that must be the same in both."""

    dtype: str
    quantize: str
    gguf: Kind
    equal: float
    fp4: Fp4Mode | None = None
    """The mode in which a checkpoint is quantized before it is loaded."""


PRECISIONS = {
    "f32": Precision("float32", "", "f32", 0.95),
    "bf16": Precision("bfloat16", "", "bf16", 0.1),
    "int8": Precision("bfloat16", "int8", "q8_0", 0.0),
    "int4": Precision("bfloat16", "int4", "q4_0", 0.0),
}
"""Random weights have near-ties, which rounding to bfloat16 in other places decides differently; after one the texts
differ. Of another model, such as one with its rotary pairs in another order, hardly any token would be the same."""
ALONE = {
    "mxfp4": Precision("bfloat16", "", "q4_0", 0.0, "mxfp4"),
    "nvfp4": Precision("bfloat16", "", "q4_0", 0.0, "nvfp4"),
}
"""Precisions that are measured without a peer."""
