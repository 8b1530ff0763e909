"""Join tokens: each is used once, in its time, for its name; and how many there may be."""

import stat
from pathlib import Path

import pytest

from actors.transport.allow_list import AllowList, Listed
from actors.transport.join_tokens import MAX_TOKENS, MAX_VALID_S, PREFIX, JoinTokens, parse_token
from actors.transport.keys import KeyFileError, KeyPair


class Clock:
    """Seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def new_key() -> str:
    return KeyPair.generate().public_text


def test_a_token_is_used_once(tmp_path: Path) -> None:
    tokens, allowed = JoinTokens(tmp_path), AllowList(tmp_path)
    assert tokens.read() == Listed()
    text = tokens.make("gpu1")
    token, own = parse_token(text), KeyPair.generate()
    file = tmp_path / "tokens" / "gpu1.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text.removeprefix(PREFIX) not in file.read_text()
    assert tokens.read() == Listed({token.public: "gpu1"})
    assert tokens.redeem(token.public, own.public_text, allowed) == "gpu1"
    assert allowed.read() == Listed({own.public: "gpu1"})
    assert tokens.read() == Listed()
    with pytest.raises(KeyFileError, match="was used"):
        tokens.redeem(token.public, new_key(), allowed)
    assert allowed.read() == Listed({own.public: "gpu1"})


def test_a_token_expires(tmp_path: Path) -> None:
    clock = Clock()
    tokens, allowed = JoinTokens(tmp_path, clock), AllowList(tmp_path)
    token = parse_token(tokens.make("gpu1", 10))
    clock.now += 9.9
    assert tokens.read().names == {token.public: "gpu1"}
    clock.now += 0.1
    assert tokens.read().names == {}
    with pytest.raises(KeyFileError, match="has expired"):
        tokens.redeem(token.public, new_key(), allowed)
    assert allowed.read() == Listed()


def test_a_new_token_replaces_an_unused_one_and_takes_the_place_of_its_worker(tmp_path: Path) -> None:
    tokens, allowed = JoinTokens(tmp_path), AllowList(tmp_path)
    allowed.add("gpu1", new_key())
    first, second = parse_token(tokens.make("gpu1")), parse_token(tokens.make("gpu1"))
    assert tokens.read().names == {second.public: "gpu1"}
    own = KeyPair.generate()
    with pytest.raises(KeyFileError, match="was replaced"):
        tokens.redeem(first.public, own.public_text, allowed)
    tokens.redeem(second.public, own.public_text, allowed)
    assert allowed.read() == Listed({own.public: "gpu1"})


def test_a_token_that_cannot_be_used_stays(tmp_path: Path) -> None:
    tokens, allowed = JoinTokens(tmp_path), AllowList(tmp_path)
    other = new_key()
    allowed.add("gpu2", other)
    token = parse_token(tokens.make("gpu1"))
    for key, problem in (
        (other, "the key of gpu2"),
        ("", "64 hexadecimal digits"),
        (token.public_text, "cannot be the key of a worker"),
    ):
        with pytest.raises(KeyFileError, match=problem):
            tokens.redeem(token.public, key, allowed)
    assert tokens.read().names == {token.public: "gpu1"}
    assert tokens.revoke("gpu1")
    assert not tokens.revoke("gpu1")
    assert tokens.read().names == {}


def test_there_are_so_many_and_expired_ones_make_room(tmp_path: Path) -> None:
    clock = Clock()
    tokens = JoinTokens(tmp_path, clock)
    tokens.make("first", 10)
    for number in range(1, MAX_TOKENS):
        (tmp_path / "tokens" / f"w{number}.token").write_text(f"{new_key()} {int(clock.now) + 60}\n")
    with pytest.raises(KeyFileError, match=f"{MAX_TOKENS} is the most"):
        tokens.make("another")
    tokens.make("first", 10)
    assert len(tokens.read().names) == MAX_TOKENS
    clock.now += 10
    tokens.make("another")
    assert len(tokens.read().names) == MAX_TOKENS


@pytest.mark.parametrize("valid_s", [0.99, MAX_VALID_S + 1, float("nan")])
def test_the_time_is_bounded(tmp_path: Path, valid_s: float) -> None:
    with pytest.raises(KeyFileError, match="valid for 1 to 604800 seconds"):
        JoinTokens(tmp_path).make("gpu1", valid_s)
    JoinTokens(tmp_path).make("gpu1", 1)
    JoinTokens(tmp_path).make("gpu1", MAX_VALID_S)


def test_what_is_no_token_is_refused_and_said(tmp_path: Path) -> None:
    tokens = JoinTokens(tmp_path)
    with pytest.raises(KeyFileError, match="not a valid worker name"):
        tokens.make("../x")
    tokens.make("gpu1")
    (tmp_path / "tokens" / "gpu2.token").write_text("half")
    (tmp_path / "tokens" / "gpu3.token").mkdir()
    read = tokens.read()
    assert list(read.names.values()) == ["gpu1"]
    assert read.refused == {
        "gpu2.token": "gpu2.token: a token's file has a key and the second in which it expires",
        "gpu3.token": "gpu3.token cannot be read: it is not a regular file",
    }
    secret = "1" * 63
    with pytest.raises(KeyFileError, match="--join-token: a join token is") as caught:
        parse_token(PREFIX + secret, "--join-token")
    assert secret not in str(caught.value)


def test_keys_are_put_in_place_of_others(tmp_path: Path) -> None:
    allowed, first, second = AllowList(tmp_path), KeyPair.generate(), KeyPair.generate()
    allowed.put("gpu1", first.public_text)
    allowed.put("gpu1", first.public_text)
    allowed.put("gpu1", second.public_text)
    assert allowed.read() == Listed({second.public: "gpu1"})
    with pytest.raises(KeyFileError, match="the key of gpu1"):
        allowed.put("gpu2", second.public_text)
