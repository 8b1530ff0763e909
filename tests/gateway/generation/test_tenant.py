"""Sharing of a cache: by the key that a client shows and the salt that it gives."""

from gateway.generation.tenant import tenant_of
from protocol.commands import TENANT_SALT


def test_only_the_same_key_and_the_same_salt_are_one_tenant() -> None:
    asked = [(key, salt) for key in (b"", b"one", b"two") for salt in ("", "a", "b")]
    assert len({tenant_of(*each) for each in asked}) == len(asked)
    assert [tenant_of(*each) for each in asked] == [tenant_of(*each) for each in asked]


def test_who_shows_and_says_nothing_has_no_name() -> None:
    assert tenant_of(b"", "") == ""


def test_no_salt_imitates_another_key() -> None:
    theirs = tenant_of(b"key", "salt")
    assert "key" not in theirs
    assert tenant_of(b"", theirs) != theirs
    assert tenant_of(b"ke", "ysalt") != theirs


def test_a_key_that_is_not_checked_keeps_kv_apart_and_makes_no_client() -> None:
    tenants = {tenant_of(key, salt, checked=False) for key in (b"one", b"two") for salt in ("", "salt")}
    assert len(tenants) == 4
    assert {tenant.partition(TENANT_SALT)[0] for tenant in tenants} == {""}
    assert tenant_of(b"", "", checked=False) == ""


def test_each_fairness_id_of_a_key_is_a_client() -> None:
    asked = [(b"key", ""), (b"key", "a"), (b"key", "b"), (b"other", "a"), (b"", "a"), (b"", "")]
    clients = [tenant_of(key, "", fairness_id=fairness_id) for key, fairness_id in asked]
    assert len(set(clients)) == len(asked)
    assert tenant_of(b"key", "salt", fairness_id="a").partition(TENANT_SALT)[0] == clients[1]


def test_a_key_that_was_not_checked_makes_no_client_of_a_fairness_id() -> None:
    given = tenant_of(b"invented", "", checked=False, fairness_id="a")
    assert given.partition(TENANT_SALT)[0] == tenant_of(b"", "", checked=False, fairness_id="a")
    assert given != tenant_of(b"other", "", checked=False, fairness_id="a")
