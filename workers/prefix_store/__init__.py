"""Blocks of cache rows in files, shared by the workers of a machine."""
