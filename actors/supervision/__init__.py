"""One worker through its life: incarnations, progress, restarts, for local processes and remote peers."""
