"""Images of chats in the prompt builder."""
