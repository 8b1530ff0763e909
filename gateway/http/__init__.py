"""The HTTP server under every dialect: listener, exchange, authentication, body budget, errors."""
