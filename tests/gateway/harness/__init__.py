"""Fakes, clients and worlds for the tests of the gateway."""
