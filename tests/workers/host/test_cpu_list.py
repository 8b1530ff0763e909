"""Lists of CPUs, as texts and back."""

import pytest

from workers.host.cpu_list import cpu_list, cpu_text


@pytest.mark.parametrize(
    ("text", "numbers"), [("", ()), ("3", (3,)), ("0-3,8", (0, 1, 2, 3, 8)), ("5, 2-3", (2, 3, 5)), ("1,1-2", (1, 2))]
)
def test_a_list(text: str, numbers: tuple[int, ...]) -> None:
    assert cpu_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,", "0-99999999", "1-2-3"])
def test_not_a_list(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        cpu_list(text)


@pytest.mark.parametrize("text", ["", "3", "0-3,8", "0,2,4-5"])
def test_a_list_is_written_with_ranges(text: str) -> None:
    assert cpu_text(reversed(cpu_list(text))) == text
