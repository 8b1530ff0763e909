"""Tests of `gateway.ollama`."""
