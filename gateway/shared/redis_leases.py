"""Leases on shares of limits, in Redis: the only place that imports redis.

One hash has a field for each gateway: when its leases expire, by Redis' clock, and its claims. One script writes the
own field and reads the others, so that all claims of one key never exceed the whole, without a lock.
"""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.shared.redis_url import check_redis_url

TIMEOUT_S = 0.5
"""Time for Redis to answer."""
LEASE_S = 5.0
"""Time after which the claims of a gateway that does not renew them are gone."""
FIELD = "baton:limits"

_EXCHANGE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local wanted, claimed, found = cjson.decode(ARGV[3]), {}, {}
local fields = redis.call('HGETALL', KEYS[1])
for index = 1, #fields, 2 do
  local expires, text = string.match(fields[index + 1], '^(%d+) (.*)$')
  if not expires or tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], fields[index])
  elseif fields[index] ~= ARGV[1] then
    table.insert(found, fields[index])
    table.insert(found, text)
    for key, claim in pairs(cjson.decode(text)) do
      claimed[key] = (claimed[key] or 0) + claim[2]
    end
  end
end
for key, claim in pairs(wanted) do
  claim[2] = math.max(0, math.min(claim[2], 1 - (claimed[key] or 0)))
end
local own = cjson.encode(wanted)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', now + ARGV[2]) .. ' ' .. own)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
table.insert(found, ARGV[1])
table.insert(found, own)
return found
"""


class LeasesUnreachable(Exception):
    """Raised when Redis did not answer in time, or not as expected."""


class Claim(NamedTuple):
    """The claim of one gateway to one key."""

    demand: float
    """The requests that it lately had with the key."""
    share: float
    """The share of the key's limits that it wants, or has."""


Claims = Mapping[str, Claim]
"""The claims of one gateway, by the names of the keys."""
_CLAIMS = msgspec.json.Decoder(dict[str, Claim])


class RedisLeases:
    """The leases of one gateway, and a view on those of the others."""

    def __init__(self, url: str, gateway: str) -> None:
        """`url` as Redis' own clients write it; `gateway` is a name that no other gateway has. Raises `ValueError` for
        a URL that they do not take."""
        check_redis_url(url)
        self._gateway = gateway
        self._redis = Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        options = self._redis.connection_pool.connection_kwargs
        if "decode_responses" in options:
            raise ValueError("decode_responses cannot be set")
        try:
            self._redis.connection_pool.connection_class(**options)  # which connects later, and checks options now
        except TypeError as error:  # an argument that it has not
            unknown = re.search(r"argument '(\w+)'", str(error))
            raise ValueError(f"{unknown[1] if unknown else error} is no option of a connection to Redis") from error
        except RedisError as error:
            raise ValueError(str(error)) from error

    async def exchange(self, wanted: Claims) -> dict[str, Claims]:
        """Renew the leases with these claims. Returns those of all gateways, by name, the own ones as far as they were
        granted. Raises `LeasesUnreachable`."""
        text = msgspec.json.encode(wanted)
        call = self._redis.eval(_EXCHANGE, 1, FIELD, self._gateway, str(int(LEASE_S * 1000)), text)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await cast(Awaitable[list[bytes]], call)
            return {
                name.decode(): _CLAIMS.decode(claims) for name, claims in zip(answer[::2], answer[1::2], strict=True)
            }
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            raise LeasesUnreachable(f"{type(error).__name__}: {error}") from error

    async def leave(self) -> None:
        """Give the leases back, if Redis answers, and close the connections."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._redis.hdel(FIELD, self._gateway)
        except (RedisError, OSError, TimeoutError):
            pass  # they expire
        finally:
            await self._redis.aclose()
