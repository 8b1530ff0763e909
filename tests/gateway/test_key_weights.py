"""Weights of API keys, and what is refused as one."""

import pytest

from gateway.key_weights import MAX_WEIGHT, MIN_WEIGHT, parse_weights


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
