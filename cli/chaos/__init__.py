"""Breaking things on purpose under a running server, and counting what its clients notice."""
