"""The one command `baton`."""
