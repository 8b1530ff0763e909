"""The built-in model: how it is made, and the shipped result."""
