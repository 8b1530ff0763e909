"""Tests of a worker with several gateways."""
