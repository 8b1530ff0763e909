"""Programs that drive one engine each, in that engine's own virtual environment; see `bench/peers/session.py`."""
