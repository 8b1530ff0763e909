"""Drafts by a head for multi-token prediction, which is part of the checkpoint."""
