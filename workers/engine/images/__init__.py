"""Images in prompts: where their rows are, which of them are cached, and their encoding between steps."""
