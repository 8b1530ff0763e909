"""Checks that a model's logits are finite, to tell a broken model or device from a request that overflows."""

import numpy as np

from protocol.request import Sampling
from workers.engine.runner import Chunk, Runner
from workers.errors import LoadRefused
from workers.sampling.sample_spec import SampleSpec

PROBE_TOKEN = 0
"""The prompt of the check. Every vocabulary has this token, and a model without finite logits for it is not served."""


class NonFiniteModel(LoadRefused):
    """Raised by a load when the first logits of the model are NaN or infinite: every request would fail."""

    def __init__(self, dtype: str) -> None:
        wider = {"float16": "bfloat16 or float32", "bfloat16": "float32"}.get(dtype)
        super().__init__(
            "the model's logits are NaN or infinite: its weights are damaged"
            + (f", or overflow in {dtype}: try --dtype {wider}" if wider else "")
        )


def has_finite_logits(runner: Runner, slot: int, length: int = 1) -> bool:
    """Compute a prompt of some tokens in `slot`, which must be fresh; the caller resets it. Raises what the runner
    raises. Of a bidirectional model, the hidden states are checked."""
    if runner.capabilities.bidirectional:
        (states,) = runner.hidden([Chunk(slot, (PROBE_TOKEN,) * length, 0, 0)])
        return bool(np.isfinite(states).all())
    (token,) = runner.prefill([Chunk(slot, (PROBE_TOKEN,) * length, 0, 0)], [SampleSpec(Sampling(), length)])
    return token is not None
