"""The stages of `bench/gpu_check.py`."""
