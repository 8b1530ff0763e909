"""Keeps the limits of API keys across gateways: each uses the shares that it has leases on. What clients were served is
exchanged with them."""

import asyncio
from collections.abc import Mapping

import anyio
import structlog

from gateway.keys.account import Parts
from gateway.keys.api_keys import ApiKeys
from gateway.shared.limit_shares import Demand, wanted_share
from gateway.shared.redis_leases import LEASE_S, Bid, Claim, LeasesUnreachable, RedisLeases
from gateway.shared.shared_turns import SharedTurns

PERIOD_S = 1.0
"""Time between two exchanges."""

_log = structlog.get_logger("gateway.shared.limit_leases")


class LimitLeases:
    """Renews the leases. No request waits for it: without Redis, the limits are this gateway's own once the leases have
    expired."""

    def __init__(self, store: RedisLeases, keys: ApiKeys, turns: SharedTurns) -> None:
        self._store = store
        self._turns = turns
        self._keys = keys
        self._demand = Demand()
        self._others: list[Mapping[str, Claim]] = []
        """The claims of the other gateways."""
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
                await self.leave()

    async def leave(self) -> None:
        """Give the leases back. Limits are this gateway's own from now on."""
        bids = {
            name: Bid(0.0, True, 0.0, 0.0, *account.lower_share(0.0))
            for name, account in self._keys.accounts.items()
            if account.leased and self.shared
        }
        self._lose()
        await self._store.leave(bids)

    async def exchange(self) -> None:
        """Renew the leases once, and use the shares that were granted. What is given up is not used any more before it
        is published, so that a lost answer cannot make all shares more than the whole."""
        bids = self._bids()
        began = asyncio.get_running_loop().time()
        answers_before = self._answers
        try:
            answer = await self._store.exchange(bids, self._turns.publish())
            self._turns.read(answer.costs)
        except (LeasesUnreachable, ValueError) as error:
            self._answers = False
            if answers_before is not False:
                _log.warning("limits_not_shared", reason=str(error))
            if not self.shared:
                self._lose()
            return
        self._answers = True
        self._until = began + LEASE_S
        self._others = list(answer.others.values())
        self._keys.share_of_new = 1 / (1 + len(self._others))
        for name, grant in answer.own.items():
            if (account := self._keys.accounts.get(name)) is not None:
                gained = Parts(grant.requests, grant.tokens)
                if grant.renewed and account.leased:
                    account.raise_share(grant.share, gained)
                else:
                    account.join(grant.share, gained)
        if not answers_before:
            _log.info("limits_shared", gateways=1 + len(self._others))

    def _bids(self) -> dict[str, Bid]:
        """The bids for all keys, after what is given up was given up here."""
        bids = {}
        for name, demand in self._demand.update(self._keys.uses()).items():
            account = self._keys.accounts[name]
            # Others that do not have the key yet will.
            others = [each[name].demand if name in each else 0.0 for each in self._others]
            wanted, kept = wanted_share(demand, others), 0.0
            if account.leased:
                kept = min(account.share, wanted)
                given = account.lower_share(kept)
            else:
                given = Parts(*(-used for used in account.used()))
            bids[name] = Bid(demand, account.leased, kept, wanted, *given)
        return bids

    def _lose(self) -> None:
        """Use the whole limits, as there are no leases."""
        self._keys.share_of_new = 1.0
        for account in self._keys.accounts.values():
            account.leave()
