"""Fixtures of the tests of service files and of the container image."""

from tests.baton_serve.conftest import from_wheel, wheel

__all__ = ["from_wheel", "wheel"]
