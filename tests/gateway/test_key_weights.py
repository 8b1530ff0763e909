"""Weights of API keys, and what is refused as one."""

import pytest

from gateway.key_weights import MAX_WEIGHT, MIN_WEIGHT, client_name, key_of_client, parse_weights


def test_an_entry_has_a_name_and_a_weight() -> None:
    assert parse_weights(["gold=3", "a=b=0.5"]) == {"gold": 3.0, "a=b": 0.5}
    assert parse_weights([f"least={MIN_WEIGHT}", f"most={MAX_WEIGHT}"]) == {"least": MIN_WEIGHT, "most": MAX_WEIGHT}


@pytest.mark.parametrize("entry", ["gold", "=3", "gold=", "gold=much", "gold=0", "gold=0.009", "gold=1001", "gold=nan"])
def test_other_entries_are_refused_by_name(entry: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=WEIGHT") as refused:
        parse_weights([entry])
    assert repr(entry) in str(refused.value)


def test_a_name_has_one_weight() -> None:
    with pytest.raises(ValueError, match="'gold' has two weights"):
        parse_weights(["gold=1", "gold=2"])


def test_a_client_has_the_name_of_its_key_and_perhaps_a_fairness_id() -> None:
    names = {(key, given): client_name(key, given) for key in ("", "a", "ab") for given in ("", "b", "ab")}
    assert len(set(names.values())) == len(names)
    assert {key_of_client(name) == key for (key, _), name in names.items()} == {True}
