"""Rounds of measurements, the limits that they are compared with, and their tables and plots."""
