"""Mutants of decision code, the tests that should notice them, and the results of `bench/mutation.py`."""
