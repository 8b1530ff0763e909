"""Calls of the compiled graphs: the buffers and rows of slots, prompts, decode steps, scores and hidden states."""
