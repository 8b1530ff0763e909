"""Attacks by workers and on workers."""
