"""Status and administration endpoints, and the page at `/`."""
