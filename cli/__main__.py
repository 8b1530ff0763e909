"""`python -m cli` is `baton`."""

from cli.main import main

main()
