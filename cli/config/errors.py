"""Errors that end a command with a message instead of a traceback."""

import typer


class InvalidOption(typer.BadParameter):
    """Raised for an invalid option; shown with the command's usage, exit status 2."""

    def format_message(self) -> str:
        return self.message


class CommandFailed(Exception):
    """Raised when a valid command cannot be carried out; shown as one sentence, exit status 1."""
