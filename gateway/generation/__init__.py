"""What clients ask for and what they get, in no dialect."""
