"""Images over the link of a worker."""
