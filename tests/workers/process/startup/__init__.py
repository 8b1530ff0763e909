"""Tests of what a worker knows of its model before it is loaded."""
