"""Items: their fields, their text, and the chat messages that they stand for."""
