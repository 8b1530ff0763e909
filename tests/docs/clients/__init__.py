"""Features by API, asked of the code: `python -m tests.docs.clients` writes them into the page."""
