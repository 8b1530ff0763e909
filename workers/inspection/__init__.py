"""Checks of models and workers on this machine, which load nothing."""
