"""Accounts of API keys: what a key has used, and what its limits leave it."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.errors import RefusalCode, RequestError
from gateway.keys.allowance import ROUNDING, Allowance
from gateway.keys.limit_state import LimitState
from gateway.keys.record import KeyLimits
from gateway.metrics.key_collector import KeyUse

BUSY_RETRY_S = 1
"""The `Retry-After` of a key with all its requests under way, whose ends nobody knows."""


class Parts(NamedTuple):
    """Parts of the limits per minute of a key, from 0 to 1."""

    requests: float = 0.0
    tokens: float = 0.0


class KeyAccount:
    """The account of one key. Synchronous, on one event loop; the clock is the loop's.

    Where several gateways share the limits of a key, each has a share of the rates and of what is left. What one of
    them gives up is what others gain, so that all together use no more than one gateway would.
    """

    def __init__(self, limits: KeyLimits, clock: Callable[[], float], share: float = 1.0) -> None:
        """`share` is that of this gateway until it has a lease, from 0 to 1."""
        self._clock = clock
        self._requests: Allowance | None = None
        self._tokens: Allowance | None = None
        self._share = share
        self._leased = False
        self._new = True
        """It has neither had a lease nor done without."""
        self._admitted = self._refused = self._prompt = self._completion = self._live = 0
        self.update(limits)

    @property
    def limits(self) -> KeyLimits:
        """The limits as of the last `update`."""
        return self._limits

    def update(self, limits: KeyLimits) -> None:
        """Set other limits. What was used stays used."""
        now = self._clock()
        self._limits = limits
        self._requests = _resized(self._requests, self._part(limits.requests_per_minute), now)
        self._tokens = _resized(self._tokens, self._part(limits.tokens_per_minute), now)

    @property
    def share(self) -> float:
        """The share of this gateway in the limits."""
        return self._share

    @property
    def leased(self) -> bool:
        """The share was granted, and what others have was taken into account."""
        return self._leased

    def lower_share(self, share: float) -> Parts:
        """Use a share that is not larger from now on. Returns what others may use of the limits per minute instead."""
        self._share = share
        now, given = self._clock(), dict.fromkeys(Parts._fields, 0.0)
        for kind, allowance, limit in self._limited():
            given[kind] = allowance.lower(self._at_least_one(limit), now) / limit
        return Parts(**given)

    def raise_share(self, share: float, gained: Parts) -> None:
        """Use a share that is not smaller from now on, and these parts of the limits per minute, which nobody has."""
        self._share = share
        now = self._clock()
        for kind, allowance, limit in self._limited():
            allowance.gain(self._at_least_one(limit), limit * getattr(gained, kind), now)

    def used(self) -> Parts:
        """Return what was used of the share before the first lease, as parts of the limits per minute."""
        now, used = self._clock(), dict.fromkeys(Parts._fields, 0.0)
        if self._new:
            for kind, allowance, limit in self._limited():
                used[kind] = (allowance.per_minute - allowance.left(now)) / limit
        return Parts(**used)

    def join(self, share: float, left: Parts) -> None:
        """Use a share of the limits with others from now on. These parts of the limits per minute are left to it: they
        are below 0 if more was `used` before. One request is possible with any share."""
        self._share = share
        now = self._clock()
        for kind, allowance, limit in self._limited():
            units, before = limit * getattr(left, kind), allowance.left(now)
            if units >= 0:
                units = max(units if self._new else min(units, before), min(1.0, before))
            allowance.replace(self._at_least_one(limit), units)
        self._leased, self._new = True, False

    def leave(self) -> None:
        """Use the whole limits from now on, as it is not known what others use."""
        self._share, self._leased, self._new = 1.0, False, False
        now = self._clock()
        for _, allowance, limit in self._limited():
            allowance.restore(limit, now)

    def _limited(self) -> Iterator[tuple[str, Allowance, int]]:
        """The limits per minute that the key has, by their names in `Parts`."""
        limits = self._limits
        if self._requests is not None and limits.requests_per_minute is not None:
            yield "requests", self._requests, limits.requests_per_minute
        if self._tokens is not None and limits.tokens_per_minute is not None:
            yield "tokens", self._tokens, limits.tokens_per_minute

    def _part(self, limit: int | None) -> int | None:
        return None if limit is None else self._at_least_one(limit)

    def _at_least_one(self, limit: int) -> int:
        return max(1, math.floor(limit * self._share + ROUNDING))

    @property
    def use(self) -> KeyUse:
        """The use so far."""
        return KeyUse(self._admitted, self._refused, self._prompt, self._completion, self._live)

    def check(self) -> None:
        """Raise `RequestError` (429) if a further request would be refused, whatever its size."""
        limits, now = self._limits, self._clock()
        most = self._part(limits.max_concurrent)
        if most is not None and self._live >= most:
            text = f"this API key may have {limits.max_concurrent} requests at once (max_concurrent)"
            raise self._refusal(text + self._of_which(most), BUSY_RETRY_S)
        if self._requests is not None and (wait_s := self._requests.wait_s(1, now)):
            text = f"this API key may send {limits.requests_per_minute} requests per minute (requests_per_minute)"
            raise self._refusal(text + self._of_which(self._requests.per_minute), wait_s)

    def admit(self, tokens: int = 0) -> "Reservation":
        """Admit a request, and reserve the tokens that it may use, at most a minute's. Raises `RequestError` (429)."""
        self.check()
        now = self._clock()
        reserved = 0
        if self._tokens is not None:
            whole = self._limits.tokens_per_minute
            reserved = min(tokens, whole or 0)
            if wait_s := self._tokens.wait_s(min(reserved, self._tokens.per_minute), now):
                left = max(0, math.floor(self._tokens.left(now)))
                text = f"this API key may use {whole} tokens per minute (tokens_per_minute)"
                text += f"{self._of_which(self._tokens.per_minute)}; {left} are left, and the request may use {tokens}"
                raise self._refusal(text, wait_s)
            self._tokens.take(reserved, now)
        if self._requests is not None:
            self._requests.take(1, now)
        self._admitted += 1
        self._live += 1
        return Reservation(self, reserved)

    def settle(self, reserved: int, prompt: int, completion: int) -> None:
        """Count what a request has used, of which so much was reserved. Called once for each, by its `Reservation`."""
        self._live -= 1
        self._prompt += prompt
        self._completion += completion
        if self._tokens is not None:
            self._tokens.take(prompt + completion - reserved, self._clock())

    def withdraw(self, reserved: int) -> None:
        """Take a reservation back, of a request that the gateway could not serve."""
        self._admitted -= 1
        if self._requests is not None:
            self._requests.take(-1, self._clock())
        self.settle(reserved, 0, 0)

    def states(self) -> list[LimitState]:
        """The states of the limits of requests and tokens that the key has."""
        now = self._clock()
        return [
            LimitState(
                kind,
                allowance.per_minute,
                max(0, math.floor(allowance.left(now))),
                allowance.wait_s(allowance.per_minute, now),
            )
            for kind, allowance in ((b"requests", self._requests), (b"tokens", self._tokens))
            if allowance is not None
        ]

    def _of_which(self, part: int) -> str:
        """Name the part of this gateway in a limit, if others have the rest."""
        return f", of which this gateway has {part}" if self._share < 1.0 else ""

    def _refusal(self, text: str, wait_s: float) -> RequestError:
        self._refused += 1
        retry_s = max(1, math.ceil(wait_s))
        return RequestError(RefusalCode.RATE_LIMITED, text, retry_after_s=retry_s)


class Reservation:
    """One request that a key was admitted for, until it is settled."""

    __slots__ = ("_account", "_reserved")

    def __init__(self, account: KeyAccount, reserved: int) -> None:
        self._account: KeyAccount | None = account
        self._reserved = reserved

    def settle(self, prompt: int = 0, completion: int = 0) -> None:
        """Count the tokens that the request has used, and give its place back. Only the first call of a method has an
        effect."""
        account, self._account = self._account, None
        if account is not None:
            account.settle(self._reserved, prompt, completion)

    def withdraw(self) -> None:
        """Undo the reservation, as the gateway could not serve the request."""
        account, self._account = self._account, None
        if account is not None:
            account.withdraw(self._reserved)


def _resized(allowance: Allowance | None, per_minute: int | None, now: float) -> Allowance | None:
    if per_minute is None:
        return None
    if allowance is None:
        return Allowance(per_minute, now)
    allowance.resize(per_minute, now)
    return allowance
