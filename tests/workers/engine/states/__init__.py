"""Tests of recurrent states."""
