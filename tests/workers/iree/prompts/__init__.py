"""Tests of prompts that are computed in other ways than from all of their tokens."""
