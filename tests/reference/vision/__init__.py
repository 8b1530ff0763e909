"""Images, compared with transformers."""
