"""Ways to pass messages between two processes, which `bench/actors.py` compares."""
