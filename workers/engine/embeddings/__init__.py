"""Rows of embeddings in prompts."""
