"""Poison requests: those that killed workers are remembered for a while, and refused when they did so twice."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from protocol.request import ChatInput, Input, Sampling

REMEMBERED_S = 300.0
"""As long as a supervisor counts a death."""
REFUSED_AFTER = 2
"""Attributions. The first one may be wrong: two workers may have died by themselves just when they ran it."""
MAX_REMEMBERED = 256
"""Requests; the oldest one is forgotten first."""

_encode = msgspec.msgpack.Encoder().encode


class Quarantine:
    """Remembers requests by a digest of model, prompt and sampling, without the seed and the template's time, which are
    new for each request of a client that does not set them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attributed: dict[bytes, tuple[float, int]] = {}
        """When each is forgotten, which is in rising order, and how many attributions there were."""

    def add(self, model: str, prompt: Input, sampling: Sampling) -> None:
        """Worker failures were attributed to a request."""
        now = self._clock()
        self._forget(now)
        key = _digest(model, prompt, sampling)
        known = self._attributed.pop(key, None)
        count = 0 if known is None else known[1]
        self._attributed[key] = (now + REMEMBERED_S, count + 1)
        if len(self._attributed) > MAX_REMEMBERED:
            del self._attributed[next(iter(self._attributed))]

    def refuses(self, model: str, prompt: Input, sampling: Sampling) -> bool:
        """Such a request is refused now. Costs nothing while no request is remembered."""
        self._forget(self._clock())
        if not self._attributed:
            return False
        known = self._attributed.get(_digest(model, prompt, sampling))
        return known is not None and known[1] >= REFUSED_AFTER

    def _forget(self, now: float) -> None:
        while self._attributed:
            oldest = next(iter(self._attributed))
            if now < self._attributed[oldest][0]:
                return
            del self._attributed[oldest]


def _digest(model: str, prompt: Input, sampling: Sampling) -> bytes:
    if isinstance(prompt, ChatInput):
        # The digests of images stand for their data.
        images = tuple(replace(each, data=b"-") if each.digest else each for each in prompt.images)
        prompt = replace(prompt, now=0, images=images)
    return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=16).digest()
