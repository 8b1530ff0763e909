"""Keeps the limits of API keys across gateways: each uses the shares that it has leases on."""

import asyncio

import anyio
import structlog

from gateway.keys.api_keys import ApiKeys
from gateway.shared.limit_shares import Demand, wanted_share
from gateway.shared.redis_leases import LEASE_S, Claim, Claims, LeasesUnreachable, RedisLeases

PERIOD_S = 1.0
"""Time between two exchanges."""

_log = structlog.get_logger("gateway.shared.limit_leases")


class LimitLeases:
    """Renews the leases. No request waits for it: without Redis, the limits are this gateway's own once the leases have
    expired."""

    def __init__(self, store: RedisLeases, gateway: str, keys: ApiKeys) -> None:
        """`gateway` is the name of this one in the store."""
        self._store = store
        self._gateway = gateway
        self._keys = keys
        self._demand = Demand()
        self._others: list[Claims] = []
        self._until = 0.0
        """The time at which the leases expire."""
        self._answers: bool | None = None
        """The store has answered the last exchange; None before the first."""

    @property
    def shared(self) -> bool:
        """The leases are valid: the limits hold for all gateways together."""
        return asyncio.get_running_loop().time() < self._until

    async def run(self) -> None:
        """Exchange leases until cancelled; then give them back."""
        try:
            while True:
                await self.exchange()
                await anyio.sleep(PERIOD_S)
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.leave()

    async def exchange(self) -> None:
        """Renew the leases once, and use the shares that were granted."""
        demand = self._demand.update(self._keys.uses())
        wanted = {
            name: Claim(own, wanted_share(own, [each[name].demand for each in self._others if name in each]))
            for name, own in demand.items()
        }
        began = asyncio.get_running_loop().time()
        answers_before = self._answers
        try:
            claims = await self._store.exchange(wanted)
        except LeasesUnreachable as error:
            self._answers = False
            if answers_before is not False:
                _log.warning("limits_not_shared", reason=str(error))
            if not self.shared:
                self._keys.use_shares({})
            return
        self._answers = True
        self._until = began + LEASE_S
        own_claims = claims.pop(self._gateway)
        self._others = list(claims.values())
        self._keys.use_shares({name: claim.share for name, claim in own_claims.items()})
        if not answers_before:
            _log.info("limits_shared", gateways=1 + len(claims))
