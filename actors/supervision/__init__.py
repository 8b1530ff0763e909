"""One worker through its life: incarnations, progress, restarts, for a local process and a remote peer alike."""
