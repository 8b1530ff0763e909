"""Tables of the documentation that are made by asking the code."""
