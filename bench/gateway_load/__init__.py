"""The servers and the client of `bench/gateway.py`."""
