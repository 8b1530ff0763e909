"""Tests of the building of prompts, and of the queue that they wait in."""
