"""The error of a grammar that cannot be used. Imports nothing of llguidance."""


class GrammarRefused(Exception):
    """Raised for a grammar that cannot be used. `path` is where in a schema, such as `properties.name`."""

    def __init__(self, text: str, path: str = "", *, unsupported: bool = False) -> None:
        """`unsupported`: the model cannot be used with any grammar."""
        super().__init__(text)
        self.path = path
        self.unsupported = unsupported
