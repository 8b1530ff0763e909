"""Base class of errors that the operator can fix."""


class LoadRefused(Exception):
    """Raised when a model cannot be served here as it was asked for, now or later: its worker is not started again.

    The text says why; where in the code adds nothing.
    """
