"""Prompts whose hidden states are pooled: vectors and scores of texts in place of answers."""
