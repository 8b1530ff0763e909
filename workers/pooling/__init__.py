"""Vectors and scores of whole texts, from the hidden states that a model computes of their tokens."""
