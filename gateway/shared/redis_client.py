"""A client of Redis that fails fast: nothing that asks Redis waits for it longer than its timeout."""

import re

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.shared.redis_url import check_redis_url

TIMEOUT_S = 0.5
"""Time for Redis to answer."""


def open_client(url: str) -> Redis:
    """Return a client, which connects later. `url` is as Redis' own clients write it.

    Raises `ValueError` for a URL that they do not take.
    """
    check_redis_url(url)
    client = Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )
    options = client.connection_pool.connection_kwargs
    if "decode_responses" in options:
        raise ValueError("decode_responses cannot be set")
    try:
        client.connection_pool.connection_class(**options)  # which connects later, and checks options now
    except TypeError as error:  # an argument that it has not
        unknown = re.search(r"argument '(\w+)'", str(error))
        raise ValueError(f"{unknown[1] if unknown else error} is no option of a connection to Redis") from error
    except RedisError as error:
        raise ValueError(str(error)) from error
    return client
