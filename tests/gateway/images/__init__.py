"""Images at the door."""
