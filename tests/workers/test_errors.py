"""Errors about a setting name what set it."""

import pytest

from workers.errors import LoadRefused, name_source

SOURCES = {"device": "BATON_DEVICE", "cpu": "baton.toml: cpu"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("device: 'cuda' cannot be opened", "BATON_DEVICE: 'cuda' cannot be opened"),
        ("cpu: 'avx2' has no effect: leave it out", "baton.toml: cpu: 'avx2' has no effect: leave it out"),
        ("context: 1 token leaves no room", "context: 1 token leaves no room"),
        ("the device is gone", "the device is gone"),
        ("device", "device"),
    ],
)
def test_the_name_of_a_setting_becomes_what_set_it(text: str, named: str) -> None:
    assert str(name_source(LoadRefused(text), SOURCES)) == named


def test_other_errors_stay_what_they_are() -> None:
    error = LoadRefused("memory: none")
    assert name_source(error, SOURCES) is error
