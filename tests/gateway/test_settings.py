"""Settings out of range are refused by name."""

from typing import Any

import pytest

from gateway.settings import GatewaySettings, GatewaySettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("host", ""),
        ("max_body_bytes", 0),
        ("max_header_bytes", 1023),
        ("max_choices", 0),
        ("max_choices", 1025),
        ("max_streams_per_worker", 0),
        ("max_streams_per_worker", 63),
        ("request_timeout_s", 0),
        ("max_waiting_streams", -1),
        ("worker_wait_s", -1),
        ("waiting_comment_s", 0),
        ("client_stall_s", 0),
        ("shutdown_grace_s", -1),
        ("retry_after_s", 0),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(GatewaySettingsError) as raised:
        GatewaySettings(**{name: value})
    assert name in raised.value.names
    assert f"<{name}>" in raised.value.text(lambda each: f"<{each}>")


def test_the_default_listens_on_loopback_alone() -> None:
    assert GatewaySettings().host == "127.0.0.1"
