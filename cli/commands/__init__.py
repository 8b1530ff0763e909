"""The commands, one a file. `cli.main` declares their options and imports each when it runs."""
