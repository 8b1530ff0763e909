"""Access control: API keys, host names and origins."""
