"""Descriptions of model formats, and the choice of those of a checkpoint."""
