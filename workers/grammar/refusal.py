"""The error of a grammar that cannot be used. Imports nothing of llguidance."""


class GrammarRefused(Exception):
    """Raised for a grammar that cannot be used. `path` is where in a schema, such as `properties.name`."""

    def __init__(
        self, text: str, path: str = "", *, unsupported: bool = False, runaway: bool = False, retry_after_s: int = 0
    ) -> None:
        """`unsupported`: the model cannot be used with any grammar. `runaway`: it ran into a limit of the check
        process. `retry_after_s`: it was not compiled, and may be after so many seconds."""
        super().__init__(text)
        self.path = path
        self.unsupported = unsupported
        self.runaway = runaway
        self.retry_after_s = retry_after_s
