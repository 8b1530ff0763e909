"""Attacks with random input: requests made of the served OpenAPI document."""
