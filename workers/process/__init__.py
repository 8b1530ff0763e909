"""The worker process: protocol service, engine thread, tokenizing, output processing, loading."""
