"""Leases on shares of limits, in Redis.

One hash has a field for each gateway: when its leases expire, by Redis' clock, and its claims. One script writes the
own field and reads the others, so that all claims of one key never exceed the whole, without a lock. A further field
has what is left of the unclaimed share of each key, where that is not full: what a gateway gives up with a part of its
share is there until others claim that part. So all gateways together never have more left than the whole limit.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import NamedTuple, cast

import msgspec
from redis.exceptions import RedisError

from gateway.shared.redis_client import TIMEOUT_S, open_client

LEASE_S = 5.0
"""Time after which the claims of a gateway that does not renew them are gone."""
FIELD = "baton:limits"
COSTS = "baton:costs:"
"""The beginning of the names of what each gateway publishes of its clients."""
UNCLAIMED = "unclaimed"
"""The field of what is left of unclaimed shares."""

_EXCHANGE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local own, lease, bids, unclaimed_field = ARGV[1], tonumber(ARGV[2]), cjson.decode(ARGV[3]), ARGV[4]
local unclaimed, before, of_all, of_others, answer = {}, {}, {}, {}, {}
local fields = redis.call('HGETALL', KEYS[1])
for index = 1, #fields, 2 do
  local name, value = fields[index], fields[index + 1]
  if name == unclaimed_field then
    unclaimed = cjson.decode(value)
  else
    local expires, text = string.match(value, '^(%d+) (.*)$')
    local live = expires and tonumber(expires) > now
    local readable, claims = true, {}
    if live then
      claims = cjson.decode(text)
    elseif expires then
      readable, claims = pcall(cjson.decode, text)
    end
    for key, claim in pairs(readable and claims or {}) do
      of_all[key] = (of_all[key] or 0) + claim[2]
      if live and name == own then
        before[key] = claim[2]
      elseif live then
        of_others[key] = (of_others[key] or 0) + claim[2]
      end
    end
    if not live then
      redis.call('HDEL', KEYS[1], name)
    elseif name ~= own then
      table.insert(answer, name)
      table.insert(answer, text)
      table.insert(answer, redis.call('GET', KEYS[2] .. name) or '')
    end
  end
end

local keys, claims, grants, left = {}, {}, {}, {}
for key in pairs(of_all) do keys[key] = true end
for key in pairs(bids) do keys[key] = true end
for key in pairs(keys) do
  local bid, kept = bids[key], 0
  local full = math.max(0, 1 - (of_all[key] or 0))
  local level = unclaimed[key] or {full, full}
  local renewed = bid and bid[2] and before[key] ~= nil
  if renewed then
    kept = math.min(bid[3], before[key])
  end
  if bid and (renewed or not bid[2]) then
    level = {level[1] + bid[5], level[2] + bid[6]}
  end
  local free = math.max(0, 1 - (of_others[key] or 0) - kept)
  level = {math.min(level[1], free), math.min(level[2], free)}
  if bid then
    local gained = math.max(0, math.min(bid[4] - kept, free))
    local part = free > 0 and gained / free or 0
    local gains = {}
    for kind = 1, 2 do
      gains[kind] = level[kind] < 0 and level[kind] or level[kind] * part
      level[kind] = level[kind] - gains[kind]
    end
    claims[key] = {bid[1], kept + gained}
    grants[key] = {kept + gained, renewed or false, gains[1], gains[2]}
    free, kept = free - gained, kept + gained
  end
  local used = math.min(level[1], level[2]) < free - 1e-9
  if used and (of_others[key] or bid and lease > 0) then left[key] = level end
end

if lease > 0 then
  redis.call('HSET', KEYS[1], own, string.format('%d', now + lease) .. ' ' .. cjson.encode(claims))
else
  redis.call('HDEL', KEYS[1], own)
end
if next(left) then
  redis.call('HSET', KEYS[1], unclaimed_field, cjson.encode(left))
else
  redis.call('HDEL', KEYS[1], unclaimed_field)
end
if lease > 0 then
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('SET', KEYS[2] .. own, ARGV[5], 'PX', lease)
else
  redis.call('DEL', KEYS[2] .. own)
end
table.insert(answer, cjson.encode(grants))
return answer
"""


class LeasesUnreachable(Exception):
    """Raised when Redis did not answer in time, or not as expected."""


class Claim(NamedTuple):
    """The claim of one gateway to one key."""

    demand: float
    """The requests that it lately had with the key."""
    share: float
    """The share of the key's limits that it has."""


class Bid(NamedTuple):
    """The bid of a gateway for one key."""

    demand: float
    leased: bool
    """It has a lease. Otherwise it has no share that counts."""
    kept: float
    """The share that it keeps."""
    wanted: float
    """The share that it wants, which is not less."""
    requests: float = 0.0
    """The part of the requests per minute that it gives up with the rest of its share; below 0: that it has used before
    its first lease."""
    tokens: float = 0.0
    """The part of the tokens per minute, likewise."""


class Grant(NamedTuple):
    """The answer to a bid for one key."""

    share: float
    renewed: bool
    """It has what it kept, and what it gains here. Otherwise it has joined, and has what it gains here alone."""
    requests: float
    """The part of the requests per minute that it gains with the share; below 0 where it had used more."""
    tokens: float
    """The part of the tokens per minute, likewise."""


class Exchange(NamedTuple):
    """The answer to one exchange."""

    own: Mapping[str, Grant]
    others: Mapping[str, Mapping[str, Claim]]
    """The claims of the other gateways, by their names."""
    costs: Mapping[str, bytes]
    """The costs of clients that the other gateways publish."""


_CLAIMS = msgspec.json.Decoder(dict[str, Claim])
_GRANTS = msgspec.json.Decoder(dict[str, Grant])


class RedisLeases:
    """The leases of one gateway, and a view on those of the others."""

    def __init__(self, url: str, gateway: str) -> None:
        """`url` as Redis' own clients write it; `gateway` is a name that no other gateway has. Raises `ValueError` for
        a URL that they do not take."""
        self._gateway = gateway
        self._redis = open_client(url)

    async def exchange(self, bids: Mapping[str, Bid], costs: bytes = b"") -> Exchange:
        """Renew the leases with these bids, and publish these costs of clients. Raises `LeasesUnreachable`."""
        return await self._run(bids, int(LEASE_S * 1000), costs)

    async def _run(self, bids: Mapping[str, Bid], lease_ms: int, costs: bytes) -> Exchange:
        text = msgspec.json.encode(bids)
        call = self._redis.eval(_EXCHANGE, 2, FIELD, COSTS, self._gateway, str(lease_ms), text, UNCLAIMED, costs)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                *others, own = await cast(Awaitable[list[bytes]], call)
            names = [name.decode() for name in others[::3]]
            claims = {name: _CLAIMS.decode(each) for name, each in zip(names, others[1::3], strict=True)}
            return Exchange(_GRANTS.decode(own), claims, dict(zip(names, others[2::3], strict=True)))
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            raise LeasesUnreachable(f"{type(error).__name__}: {error}") from error

    async def leave(self, bids: Mapping[str, Bid]) -> None:
        """Give the leases back with what is left, if Redis answers, and close the connections."""
        try:
            await self._run(bids, 0, b"")
        except LeasesUnreachable:
            pass  # they expire
        finally:
            await self._redis.aclose()
