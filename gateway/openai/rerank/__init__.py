"""`/v1/rerank`, and `/v1/score` of texts that are compared: by a classifier of pairs, or by embeddings."""
