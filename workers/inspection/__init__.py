"""What runs and what could run on this machine, without loading it."""
