"""Parts of an engine step: restores, images, prompts and decode, and how sequences end."""
