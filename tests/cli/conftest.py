"""Fixtures of the tests of commands."""

import functools
from collections.abc import Iterator
from unittest import mock

import pytest
import typer.main


@pytest.fixture(autouse=True, scope="package")
def _commands_are_made_once() -> Iterator[None]:
    """Let Typer's runner keep the commands of an app: it would make all options of all commands for each line."""
    with mock.patch("typer.testing._get_command", functools.cache(typer.main.get_command)):
        yield
