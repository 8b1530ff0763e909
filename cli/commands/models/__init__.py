"""The commands about models: `baton pull`, `list`, `rm`, `ps` and `run`."""
