"""The key that a worker connects with, and when it gives up."""

from actors.join.join_keys import NOT_ENROLLED, REVOKED, JoinKeys
from actors.transport.keys import KeyPair
from actors.transport.link import CurveKeys


def curve_keys() -> CurveKeys:
    pair = KeyPair.generate()
    return CurveKeys(pair.public, pair.secret, server=pair.public)


OWN, TOKEN = curve_keys(), curve_keys()


def test_a_key_of_a_file_is_tried_for_ever() -> None:
    keys = JoinKeys(OWN)
    for _ in range(3):
        assert (keys.current, keys.registers) == (OWN, "")
        assert keys.ended(refused=True) == ""


def test_a_token_is_used_until_the_worker_is_welcomed() -> None:
    keys = JoinKeys(OWN, TOKEN, kept=False)
    assert (keys.current, keys.registers) == (TOKEN, keys.own_text)
    keys.welcomed()
    assert (keys.current, keys.registers) == (OWN, "")
    assert keys.ended(refused=False) == ""
    assert (keys.current, keys.registers) == (OWN, "")
    assert keys.ended(refused=True) == REVOKED


def test_a_lost_answer_is_no_reason_to_give_up() -> None:
    """The gateway has used up the token and knows the key."""
    keys = JoinKeys(OWN, TOKEN)
    assert keys.ended(refused=False) == ""
    assert keys.current == OWN
    keys.welcomed()
    assert keys.current == OWN


def test_token_and_key_are_tried_in_turn_until_both_are_refused() -> None:
    keys = JoinKeys(OWN, TOKEN)
    tried = []
    for refused in (False, False, True, False, True):
        tried.append(keys.current)
        assert keys.ended(refused=refused) == ""
    assert tried == [TOKEN, OWN, TOKEN, OWN, TOKEN]
    assert keys.ended(refused=True) == NOT_ENROLLED
