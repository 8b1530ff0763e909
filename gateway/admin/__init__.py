"""Status and administration endpoints, and the chat page."""
