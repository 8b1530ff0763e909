"""What commands show on a terminal, and what they read from it."""
