"""Request bodies of the Responses API and their decoding."""
