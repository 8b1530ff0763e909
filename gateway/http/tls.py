"""TLS of the HTTP port: the certificate, its key, and what clients negotiate."""

import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from actors.process.regular_file import read_regular
from gateway.settings import GatewaySettings

HTTP2 = "h2"
PROTOCOLS = [HTTP2, "http/1.1"]
"""The protocols of ALPN (RFC 7301), the preferred one first."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2: those that HTTP/2 allows (RFC 9113, 9.2.2). Those of TLS 1.3 all are."""
HANDSHAKE_S = 10.0
"""Time for a handshake."""
SHUTDOWN_S = 2.0
"""Time for a client to confirm the end of a connection."""
WARNED = timedelta(days=14)
"""Time before the expiry of a certificate from which a warning is logged."""
MAX_FILE_BYTES = 1 << 20
_ROUNDS = 8
"""Rounds of a handshake in memory; TLS 1.3 needs two."""


class TlsInvalid(Exception):
    """Raised for a certificate or a key that cannot be used; the text names the setting, the file and the reason."""


class Certificate(NamedTuple):
    """A certificate that was read."""

    context: ssl.SSLContext
    warning: str
    """Why clients will refuse it, soon or now; empty if there is no reason."""


class Tls:
    """The certificate of the server, which may be replaced while it serves. Handshakes begin with the present one."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises `TlsInvalid`."""
        self._cert = Path(settings.tls_cert).expanduser()
        self._key = Path(settings.tls_key).expanduser()
        self._present = self.read()
        self.context = _context()
        """The context of the listening socket. It is replaced for each handshake, also for clients that name no server:
        OpenSSL calls back for all."""
        self.context.sni_callback = self._choose
        self.spread: Callable[[], Awaitable[None]] = _nobody_else
        """Lets the other processes that serve with the certificate read it again, after `adopt`. Raises `TlsInvalid`.
        Set by the fronts."""

    def read(self) -> Certificate:
        """Read the files again, for `adopt`. Takes the time of a handshake, and may be called in any thread. Raises
        `TlsInvalid`."""
        _read("tls_key", self._key)
        chain = _read("tls_cert", self._cert)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=chain)
        except ssl.SSLError as error:
            raise TlsInvalid(f"tls_cert: {self._cert} has no valid PEM certificate: {_reason(error)}") from error
        context = _context()
        try:
            context.load_cert_chain(self._cert, self._key, password=self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                text = f"tls_key: {self._key} is not the key of the certificate in {self._cert}"
            elif error.reason is not None and error.reason.startswith(("EE_KEY", "CA_MD", "EE_MD")):
                text = f"tls_cert: {self._cert} is too weak: {_reason(error)}"
            else:
                text = f"tls_key: {self._key} has no valid PEM key: {_reason(error)}"
            raise TlsInvalid(text) from error
        except OSError as error:  # one of them was removed meanwhile
            raise TlsInvalid(f"tls_cert: {self._cert} or {self._key} cannot be read: {error.strerror}") from error
        return Certificate(context, self._warning(context, chain))

    def adopt(self, certificate: Certificate) -> None:
        """Use the certificate that was read for new connections. Others go on."""
        self._present = certificate

    @property
    def warning(self) -> str:
        """That of the present certificate, as of when it was read."""
        return self._present.warning

    def _warning(self, context: ssl.SSLContext, chain: str) -> str:
        try:
            expiry = _expiry(context, chain)
        except ssl.SSLCertVerificationError as error:
            return f"clients refuse the certificate of {self._cert}: {error.verify_message}"
        if expiry - datetime.now(UTC) < WARNED:
            return f"the certificate of {self._cert} expires at {expiry:%Y-%m-%d %H:%M} UTC"
        return ""

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._present.context

    def _refuse_password(self) -> str:
        raise TlsInvalid(f"tls_key: {self._key} is encrypted; the server needs a key without a passphrase")


async def _nobody_else() -> None:
    """No other process serves with the certificate."""


def tls_of(settings: GatewaySettings) -> Tls | None:
    """The TLS of the settings; None without a certificate. Raises `TlsInvalid`."""
    return Tls(settings) if settings.tls_cert else None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(PROTOCOLS)
    # HTTP/2 forbids both (RFC 9113, 9.2.1), and a client could keep the server busy with renegotiations.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _read(setting: str, file: Path) -> str:
    """Raises `TlsInvalid`."""
    try:
        raw = read_regular(file, MAX_FILE_BYTES)
    except OSError as error:
        raise TlsInvalid(f"{setting}: {file} cannot be read: {error.strerror}") from error
    return raw.decode("ascii", "backslashreplace")  # comments may have any encoding


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _expiry(context: ssl.SSLContext, chain: str) -> datetime:
    """When the first certificate of the chain expires, as a client that trusts it sees it. Raises
    `ssl.SSLCertVerificationError` for one that a client refuses."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # no root is needed
    client.load_verify_locations(cadata=chain)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [context.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server)]
    for _ in range(_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate: Any = ends[1].getpeercert()
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
