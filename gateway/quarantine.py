"""Requests that killed workers, remembered for a while: the same one again is refused before it kills two more."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from protocol.request import ChatInput, Input, Sampling

REMEMBERED_S = 300.0
"""As long as a supervisor remembers a death. Whoever was quarantined by mistake may try again then."""
MAX_REMEMBERED = 256
"""Requests; the oldest is forgotten first."""

_encode = msgspec.msgpack.Encoder().encode


class Quarantine:
    """Knows them by a digest of model, prompt and sampling. Not of the seed and of the time that a template is told,
    which the door makes up anew for a client that says nothing of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[bytes, float] = {}

    def add(self, model: str, prompt: Input, sampling: Sampling) -> None:
        """Remember a request from now on."""
        key = _digest(model, prompt, sampling)
        self._until.pop(key, None)  # so that the order stays that of the times
        self._until[key] = self._clock() + REMEMBERED_S
        if len(self._until) > MAX_REMEMBERED:
            del self._until[next(iter(self._until))]

    def holds(self, model: str, prompt: Input, sampling: Sampling) -> bool:
        """Such a request is remembered. Costs nothing while none is."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            del self._until[next(iter(self._until))]
        return bool(self._until) and _digest(model, prompt, sampling) in self._until


def _digest(model: str, prompt: Input, sampling: Sampling) -> bytes:
    if isinstance(prompt, ChatInput):
        prompt = replace(prompt, now=0)
    return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=16).digest()
