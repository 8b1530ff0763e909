"""Mixtures of experts: routing and expert products."""
