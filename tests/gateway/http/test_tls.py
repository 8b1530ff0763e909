"""HTTPS: what is negotiated, what a bad certificate or handshake does, and certificates that are replaced."""

import os
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import anyio
import anyio.lowlevel
import httpx
import httpx2
import openai
import pytest
import trustme
from anyio.abc import SocketStream
from anyio.streams.tls import TLSAttribute, TLSStream
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.http import server, tls
from gateway.http.connection import handshakes
from gateway.http.listener import SPARE
from gateway.http.tls import MAX_FILE_BYTES, WARNED, Tls, TlsInvalid, tls_of
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.gateway.harness.certificates import CertificateFiles, write_certificate
from tests.gateway.harness.serving import COMPLETION, events, serving
from tests.gateway.harness.vendor_clients import ask_in_turn

pytestmark = pytest.mark.anyio

AUTHORITY = trustme.CA()


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return write_certificate(tmp_path, AUTHORITY)


@pytest.fixture
def trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


async def rest(stream: SocketStream) -> bytes:
    """Receive until the server closes the connection."""
    received = b""
    async with stream:
        while True:
            try:
                received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received


def settings(files: CertificateFiles) -> GatewaySettings:
    return GatewaySettings(**files.settings)


@pytest.mark.parametrize("http2", [False, True])
async def test_a_stream_comes_over_tls(files: CertificateFiles, trusted: ssl.SSLContext, http2: bool) -> None:
    async with (
        serving(trusted=trusted, **files.settings) as served,
        httpx.AsyncClient(base_url=f"https://localhost:{served.port}", verify=trusted, http2=http2) as client,
        anyio.create_task_group() as group,
    ):

        async def ask() -> None:
            async with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as response:
                assert response.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
                assert (await events(response))[-1] == "[DONE]"

        group.start_soon(ask)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "a", 1)
        served.worker.finish(submit.stream)


async def test_the_clients_of_the_vendors_come_over_tls(files: CertificateFiles, trusted: ssl.SSLContext) -> None:
    async with serving(trusted=trusted, **files.settings) as served:
        base = f"https://127.0.0.1:{served.port}"
        http = httpx.AsyncClient(verify=trusted)
        also = httpx2.AsyncClient(verify=trusted)
        async with (
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", http_client=http) as of_openai,
            anthropic.AsyncAnthropic(base_url=base, api_key="none", http_client=also) as of_anthropic,
        ):
            answers = await ask_in_turn(served.worker, of_openai, of_anthropic)
        assert answers == ["yes", "yes"]


@pytest.mark.parametrize(
    ("offered", "sent", "answered"),
    [
        (["h2", "http/1.1"], b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (["http/1.1"], b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
        (["http/1.1"], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 505"),
        ([], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 505"),
        ([], b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    ],
)
async def test_the_protocol_is_the_one_that_was_negotiated(
    files: CertificateFiles, trusted: ssl.SSLContext, offered: list[str], sent: bytes, answered: bytes
) -> None:
    if offered:
        trusted.set_alpn_protocols(offered)
    async with serving(trusted=trusted, **files.settings) as served:
        stream = await anyio.connect_tcp(
            "127.0.0.1", served.port, tls=True, ssl_context=trusted, tls_standard_compatible=False
        )
        async with stream:
            await stream.send(sent)
            received = await stream.receive()
        if answered:
            assert received.startswith(answered)
        else:  # HTTP/2 begins with a frame of settings, and ends with GOAWAY
            assert received[3] == 4
            assert b"HTTP/1.1" not in received


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_is_replaced_for_new_connections(
    files: CertificateFiles, trusted: ssl.SSLContext, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    trusted.maximum_version = version

    async def name_of(port: int) -> tuple[str, TLSStream]:
        made = await anyio.connect_tcp("127.0.0.1", port, tls=True, ssl_context=trusted, tls_standard_compatible=False)
        certificate: Any = made.extra(TLSAttribute.peer_certificate)
        subject = certificate["subject"]
        return dict(pair for each in subject for pair in each)["commonName"], made

    async with serving(trusted=trusted, **files.settings) as served:
        name, first = await name_of(served.port)
        other = write_certificate(tmp_path, AUTHORITY, "other", not_after=datetime.now(UTC) + WARNED / 2)
        other.cert.replace(files.cert)
        refused = await served.client.post("/admin/tls/reload", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tls_not_reloaded")
        assert "is not the key of the certificate" in refused.json()["error"]["message"]
        again, second = await name_of(served.port)
        other.key.replace(files.key)
        answer = await served.client.post("/admin/tls/reload", json={})
        assert "expires at" in answer.json()["warning"]
        later, third = await name_of(served.port)
        assert [name, again, later] == ["server", "server", "other"]
        for stream in (first, second, third):
            await stream.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await stream.aclose()


def test_a_file_that_is_removed_while_it_is_read_is_no_certificate(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while another process replaces both."""
    present = Tls(settings(files))

    def read_then_removed(file: Path, most: int) -> bytes:
        content = file.read_bytes()
        if file == files.cert:
            file.unlink()
        return content

    monkeypatch.setattr(tls, "read_regular", read_then_removed)
    with pytest.raises(TlsInvalid, match="cannot be read: No such file"):
        present.read()


def test_the_warning_is_about_the_certificate_that_was_read(files: CertificateFiles) -> None:
    """The file may be another one by now."""
    present = Tls(settings(files))
    files.cert.unlink()
    assert present.warning == ""


async def test_a_server_without_tls_reloads_none() -> None:
    async with serving() as served:
        answer = await served.client.post("/admin/tls/reload", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "tls_not_reloaded")


async def test_a_handshake_that_never_ends_or_is_garbage_holds_up_nobody(
    files: CertificateFiles, trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.3)
    async with serving(trusted=trusted, max_connections=4, **files.settings) as served:
        silent = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(3)]
        await silent[1].send(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        garbage = await anyio.connect_tcp("127.0.0.1", served.port)
        await garbage.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in await rest(garbage)
        assert (await served.client.get("/health/live")).status_code == 200
        for stream in silent:
            await rest(stream)
        await served.until(lambda: served.listener.connections == 1)
        assert (await served.client.get("/v1/models")).status_code == 200


def client_hello() -> bytes:
    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(("time_s", "at_once"), [(0.0, range(1, 2)), (60.0, range(2, 17))], ids=["none", "much"])
async def test_handshakes_that_come_together_take_a_bounded_time_of_each_turn(
    files: CertificateFiles, trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, time_s: float, at_once: range
) -> None:
    """Whatever their number, tokens and other requests are served between them."""
    monkeypatch.setattr(handshakes, "HANDSHAKES_S", time_s)
    begun: list[int] = []
    turn = 0
    choose = Tls._choose

    def counted(self: Tls, *arguments: Any) -> None:
        begun.append(turn)
        choose(self, *arguments)

    monkeypatch.setattr(Tls, "_choose", counted)
    hello = client_hello()
    async with serving(trusted=trusted, **files.settings) as served:
        clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(16)]
        for client in clients:
            client.sendall(hello)
        while len(begun) < len(clients):
            turn += 1
            await anyio.lowlevel.checkpoint()
        for client in clients:
            client.close()
        assert max(begun.count(each) for each in begun) in at_once
        assert (await served.client.get("/v1/models")).status_code == 200
        await served.until(lambda: served.listener.connections == 1)


async def test_handshakes_count_as_connections(files: CertificateFiles, trusted: ssl.SSLContext) -> None:
    async with serving(trusted=trusted, max_connections=1, **files.settings) as served:
        silent = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(1 + SPARE)]
        await served.until(lambda: served.listener.connections == 1 + SPARE)
        assert await rest(await anyio.connect_tcp("127.0.0.1", served.port)) == b""
        await silent.pop().aclose()
        await served.until(lambda: served.listener.connections == SPARE)
        refused = await served.client.get("/v1/models")
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        for stream in silent:
            await stream.aclose()


async def test_a_refused_body_has_its_answer_over_tls(files: CertificateFiles, trusted: ssl.SSLContext) -> None:
    async with serving(trusted=trusted, max_body_bytes=1000, **files.settings) as served:
        answer = await served.client.post(
            "/v1/completions", content=b"x" * 5000, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
        assert (await served.client.get("/v1/models")).status_code == 200


@pytest.fixture
def broken(files: CertificateFiles, tmp_path: Path) -> dict[str, tuple[CertificateFiles, str]]:
    other = write_certificate(tmp_path, AUTHORITY, "other")
    text, large, secret = (tmp_path / name for name in ("text", "large", "secret.key"))
    text.write_text("nothing \u00e9")
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    key = load_pem_private_key(files.key.read_bytes(), None)
    encrypted = BestAvailableEncryption(b"passphrase")
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
    os.mkfifo(tmp_path / "pipe")
    absent = tmp_path / "absent"
    return {
        "no certificate file": (files._replace(cert=absent), f"tls_cert: {absent} cannot be read: No such file"),
        "no key file": (files._replace(key=absent), f"tls_key: {absent} cannot be read: No such file"),
        "a directory": (files._replace(key=tmp_path), f"tls_key: {tmp_path} cannot be read: it is not a regular file"),
        "a pipe": (files._replace(cert=tmp_path / "pipe"), "tls_cert: .*pipe cannot be read: it is not a regular"),
        "no certificate": (files._replace(cert=text), f"tls_cert: {text} has no valid PEM certificate"),
        "a key for a certificate": (files._replace(cert=files.key), "tls_cert: .*no valid PEM certificate"),
        "no key": (files._replace(key=text), f"tls_key: {text} has no valid PEM key"),
        "a certificate for a key": (files._replace(key=files.cert), "tls_key: .* has no valid PEM key"),
        "another key": (files._replace(key=other.key), f"tls_key: {other.key} is not the key of the certificate in"),
        "an encrypted key": (files._replace(key=secret), f"tls_key: {secret} is encrypted"),
        "a large file": (
            files._replace(cert=large),
            f"tls_cert: {large} cannot be read: it is over the bound of {MAX_FILE_BYTES}",
        ),
    }


BROKEN = (
    *("no certificate file", "no key file", "a directory", "a pipe", "no certificate", "a key for a certificate"),
    *("no key", "a certificate for a key", "another key", "an encrypted key", "a large file"),
)


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_used_is_named_with_its_setting(
    broken: dict[str, tuple[CertificateFiles, str]], case: str
) -> None:
    files, words = broken[case]
    with pytest.raises(TlsInvalid, match=words):
        tls_of(settings(files))


def test_every_case_is_tested(broken: dict[str, tuple[CertificateFiles, str]]) -> None:
    assert set(broken) == set(BROKEN)


def test_both_files_are_needed(files: CertificateFiles) -> None:
    assert tls_of(GatewaySettings()) is None
    for name, value in files.settings.items():
        with pytest.raises(GatewaySettingsError, match=f"^{name} needs tls_.*: they go together"):
            GatewaySettings(**{name: value})


def test_an_expired_certificate_is_a_warning(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for name, not_after, words in (
        ("old", now - timedelta(days=1), "clients refuse the certificate of .*old.crt: certificate has expired"),
        ("soon", now + WARNED - timedelta(hours=1), "the certificate of .*soon.crt expires at"),
        ("good", now + WARNED + timedelta(hours=1), "^$"),
    ):
        warning = Tls(settings(write_certificate(tmp_path, AUTHORITY, name, not_after=not_after))).warning
        assert re.search(words, warning), name


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_old_versions_and_plain_clients_are_refused(files: CertificateFiles) -> None:
    async with serving(trusted=False, **files.settings) as served:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")

        def handshake() -> None:
            with socket.create_connection(("127.0.0.1", served.port)) as raw, old.wrap_socket(raw):
                pass

        with pytest.raises(ssl.SSLError):
            await anyio.to_thread.run_sync(handshake)
        async with httpx.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx.RemoteProtocolError):
                await plain.get(f"http://127.0.0.1:{served.port}/health/live")
