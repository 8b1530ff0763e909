"""Families of Gemma whose layers differ in more than an entry can state."""
