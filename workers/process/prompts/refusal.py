"""The refusal of a request whose prompt, tools or grammar is invalid."""

from protocol.errors import ErrorCode


class PromptRefused(Exception):
    """Raised for an invalid request. `field` is the invalid field."""

    def __init__(self, code: ErrorCode, text: str, field: str) -> None:
        super().__init__(text)
        self.code = code
        self.field = field


def unsupported(text: str, field: str) -> PromptRefused:
    """Return the refusal of what the model cannot do."""
    return PromptRefused(ErrorCode.UNSUPPORTED, text, field)
