"""The commands, one file for each. `cli.main` declares their options, and imports a command when it runs."""
