"""Requests that killed workers, remembered for a while: one that did so twice is refused before it kills more."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from protocol.request import ChatInput, Input, Sampling

REMEMBERED_S = 300.0
"""As long as a supervisor remembers a death."""
REFUSED_AFTER = 2
"""Verdicts. A first one may be a mistake: two workers that died by themselves just when they ran it."""
MAX_REMEMBERED = 256
"""Requests; the oldest is forgotten first."""

_encode = msgspec.msgpack.Encoder().encode


class Quarantine:
    """Knows them by a digest of model, prompt and sampling. Not of the seed and of the time that a template is told,
    which the door makes up anew for a client that says nothing of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._verdicts: dict[bytes, tuple[float, int]] = {}
        """How many there were, and when they are forgotten; that time rises."""

    def add(self, model: str, prompt: Input, sampling: Sampling) -> None:
        """A request was found guilty of two deaths."""
        now = self._clock()
        self._forget(now)
        key = _digest(model, prompt, sampling)
        _, count = self._verdicts.pop(key, (0.0, 0))
        self._verdicts[key] = (now + REMEMBERED_S, count + 1)
        if len(self._verdicts) > MAX_REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]

    def refuses(self, model: str, prompt: Input, sampling: Sampling) -> bool:
        """Such a request is not to be tried now. Costs nothing while none is remembered."""
        self._forget(self._clock())
        if not self._verdicts:
            return False
        _, count = self._verdicts.get(_digest(model, prompt, sampling), (0.0, 0))
        return count >= REFUSED_AFTER

    def _forget(self, now: float) -> None:
        while self._verdicts:
            oldest = next(iter(self._verdicts))
            if now < self._verdicts[oldest][0]:
                return
            del self._verdicts[oldest]


def _digest(model: str, prompt: Input, sampling: Sampling) -> bytes:
    if isinstance(prompt, ChatInput):
        prompt = replace(prompt, now=0)
    return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=16).digest()
