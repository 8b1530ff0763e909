"""Chat completions: messages, tools and options of reasoning, from the body to the worker."""
