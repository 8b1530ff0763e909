"""The specification of a front: what its process is started with."""

from msgspec import Struct

from gateway.settings import GatewaySettings


class FrontSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that a front uses: those of `GatewaySettings` with these names. None is a secret."""

    tcp: bool
    unix_socket: str
    tls_cert: str
    tls_key: str
    max_body_bytes: int
    max_header_bytes: int
    max_connections: int
    body_timeout_s: float
    client_stall_s: float
    keep_alive_s: float
    flush_s: float
    retry_after_s: int

    @classmethod
    def of(cls, settings: GatewaySettings) -> "FrontSettings":
        """Those of each front."""
        return cls(**{name: getattr(settings, name) for name in cls.__struct_fields__})

    def chosen(self) -> GatewaySettings:
        """The settings in the front's process."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return GatewaySettings(**values)


class FrontSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One front."""

    number: int
    settings: FrontSettings
    tcp: int | None
    """The descriptor of the listening TCP socket."""
    unix: int | None
    """The descriptor of the listening Unix socket."""
    counts: int | None = None
    """The descriptor of `ConnectionCounts`."""
