"""Tests of what gateways share."""
