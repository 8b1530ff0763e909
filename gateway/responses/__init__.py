"""OpenAI's Responses API: items, typed stream events, stored and background responses."""
