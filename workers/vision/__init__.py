"""Images in prompts: decoding, patches, vision towers, and the rows of embeddings that they make."""
