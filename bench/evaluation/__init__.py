"""Scores of models by evaluation harnesses."""
