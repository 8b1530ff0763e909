"""Errors before any dialect writes them."""

import pytest

from gateway.errors import RETRYABLE, STATUS, RefusalCode, RequestError
from protocol.errors import ErrorCode


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == {*ErrorCode, *RefusalCode}
    assert len({str(code) for code in STATUS}) == len(STATUS), "no code has two meanings"


@pytest.mark.parametrize("code", STATUS, ids=str)
def test_only_transient_errors_have_retry_after(code: ErrorCode | RefusalCode) -> None:
    error = RequestError(code, "no", retry_after_s=7, headers=[(b"connection", b"close")])
    retry = [(b"retry-after", b"7")] if code in RETRYABLE else []
    assert error.headers == [*retry, (b"connection", b"close")]


def test_an_error_without_a_field_has_none() -> None:
    assert RequestError(ErrorCode.STEP, "no", field="").field is None
