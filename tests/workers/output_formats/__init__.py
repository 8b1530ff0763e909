"""Tests of workers/output_formats."""
