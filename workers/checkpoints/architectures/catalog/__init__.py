"""The entries of families that differ from Llama in more than a few fields."""
