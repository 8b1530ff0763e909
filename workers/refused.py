"""The one base of the errors that a person mends, not a programmer."""


class LoadRefused(Exception):
    """This model cannot be served here as it was asked for. The text says why; where in the code adds nothing."""
