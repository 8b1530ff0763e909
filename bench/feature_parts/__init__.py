"""The parts of bench/features.py: each measures a feature beside the same server without it."""
