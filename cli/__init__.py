"""The command line, `baton`."""
