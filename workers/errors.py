"""Base class of errors that the operator can fix."""

from collections.abc import Mapping


class LoadRefused(Exception):
    """Raised when a model cannot be served here as it was asked for, now or later: its worker is not started again.

    The text says why; where in the code adds nothing.
    """


def name_source(error: LoadRefused, sources: Mapping[str, str]) -> LoadRefused:
    """Return an error that begins with the flag, the variable or the line of a file that set a setting, if this one
    begins with the setting's name."""
    name, colon, rest = str(error).partition(": ")
    return LoadRefused(f"{sources[name]}: {rest}") if colon and name in sources else error
