"""Attacks on the program: each test failed before what it attacks was mended."""
