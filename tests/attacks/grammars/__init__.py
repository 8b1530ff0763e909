"""Grammars that are too large, too slow, contradictory or built to crash a compiler."""
