"""Tests of streams that another gateway continues."""
