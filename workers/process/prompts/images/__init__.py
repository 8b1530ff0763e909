"""Images of chats, as prompts are built with them."""
