"""`/v1/embeddings`: vectors of texts."""
