"""URLs of Redis: those that its client would misread are refused, without a word of the password."""

import pytest

pytest.importorskip("redis", reason="needs the `redis` extra")

from gateway.shared.redis_leases import RedisLeases

INVALID = "invalid host or port; characters such as / # @ in a password must be percent-encoded"
NO_HOST = "the host is missing; write redis://HOST:PORT"
NO_PATH = "write unix:///PATH, with three slashes"
NO_DATABASE = "after the host and a slash is the number of a database"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://", NO_HOST),
        ("redis://:6379", NO_HOST),
        ("redis://a b:6379", NO_HOST),
        ("redis://h:port", INVALID),
        ("redis://h:65536", INVALID),
        ("redis://[::1", INVALID),
        ("redis://:sec/ret@h:6379", INVALID),
        ("redis://:sec#ret@h:6379", INVALID),
        ("redis://h:0", "the port must be 1 to 65535"),
        ("redis://h:6379/main", NO_DATABASE),
        ("redis://h:6379/1/2", NO_DATABASE),
        ("unix://", NO_PATH),
        ("unix://run/redis.sock", NO_PATH),
        ("redis://h?timeout=1", "timeout is no option of a connection to Redis"),
        ("redis://h?decode_responses=true", "decode_responses cannot be set"),
        ("redis://h?socket_timeout=x", "Invalid value for 'socket_timeout' in connection URL."),
    ],
)
def test_a_wrong_url_is_a_sentence(url: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        RedisLeases(url, "gateway")
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:65535/15",
        "redis://user:p%2Fw@[::1]:6379/0",
        "rediss://h:6380?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=1",
        "unix://user:secret@/run/redis.sock",
    ],
)
def test_others_are_taken(url: str) -> None:
    RedisLeases(url, "gateway")
