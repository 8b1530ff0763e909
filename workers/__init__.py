"""Worker processes: scheduler, text processing, and one runner per backend."""
