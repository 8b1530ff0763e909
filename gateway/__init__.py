"""Who answers people: HTTP, SSE, routing, admission, metrics."""
