"""Child processes and this process itself: start, exit and its cause, stderr, descriptors, logs."""
