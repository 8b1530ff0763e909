"""Tests of requests and their output, independent of the API dialect."""
