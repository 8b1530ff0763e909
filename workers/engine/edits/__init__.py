"""Logit edits of one position, which follow from the last tokens of a sequence."""
