"""Building of prompts: tokens, the grammar of the answer, and the queue that requests wait in for them."""
