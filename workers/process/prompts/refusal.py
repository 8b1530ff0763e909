"""The refusal of a request whose prompt, tools or grammar is invalid."""

from protocol.errors import ErrorCode


class PromptRefused(Exception):
    """Raised for an invalid request. `field` is the invalid field. With `retry_after_s`, it may be sent again then."""

    def __init__(self, code: ErrorCode, text: str, field: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s


class PromptCancelled(Exception):
    """Raised while a prompt is built that no request waits for any more."""


def unsupported(text: str, field: str) -> PromptRefused:
    """Return the refusal of what the model cannot do."""
    return PromptRefused(ErrorCode.UNSUPPORTED, text, field)
