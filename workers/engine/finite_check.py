"""Whether a model gives numbers at all: told apart from a request for which it does not."""

from protocol.request import Sampling
from workers.engine.runner import Chunk, Runner
from workers.errors import LoadRefused
from workers.sampling.sample_spec import SampleSpec

TOKEN = 0
"""The prompt that is tried: every vocabulary has it, and a model that has none for it is not served."""


class NoNumbers(LoadRefused):
    """Raised by a load: the model's first logits are not numbers, and a client would get nothing but errors."""

    def __init__(self, dtype: str) -> None:
        wider = {"float16": "bfloat16 or float32", "bfloat16": "float32"}.get(dtype)
        super().__init__(
            "the model's logits are not numbers: its weights are damaged"
            + (f", or overflow in {dtype}: try --dtype {wider}" if wider else "")
        )


def gives_numbers(runner: Runner, slot: int) -> bool:
    """Compute one token in a slot that is fresh, and the caller's to reset. Raises what the runner raises."""
    (token,) = runner.prefill([Chunk(slot, (TOKEN,), 0, 0)], [SampleSpec(Sampling(), 1)])
    return token is not None
