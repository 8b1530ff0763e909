"""Attacks through the files of a checkpoint."""
