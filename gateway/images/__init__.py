"""Images of requests: where they are from, their checks, and the fetching of those that have a URL."""
