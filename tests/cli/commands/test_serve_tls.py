"""`baton serve` over TLS as a process: its commands, a take-over, and files that are wrong."""

import ssl
import threading
from pathlib import Path

import httpx
import pytest
import trustme

from tests.cli.command_line import baton
from tests.cli.commands.test_serve import SERVE, read_until, serving, url_of
from tests.gateway.harness.certificates import CertificateFiles, write_certificate
from tests.ports import port_for_later

AUTHORITY = trustme.CA()


def flags(files: CertificateFiles) -> list[str]:
    return ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]


def test_the_commands_reach_a_server_over_tls(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, AUTHORITY)
    with serving([*SERVE, *flags(files)]) as process:
        url = url_of(read_until(process, "ready"))
        assert url.startswith("https://127.0.0.1:")
        trusting = {"SSL_CERT_FILE": str(files.root)}
        generated = baton("generate", "-p", "hi", "--no-chat-template", "--url", url, "-n", "3", **trusting)
        assert generated.returncode == 0, generated.stderr
        listed = baton("admin", "workers", "--url", url, **trusting)
        assert (listed.returncode, "w0" in listed.stdout) == (0, True), listed.stderr
        refused = baton("admin", "workers", "--url", url)
        assert (refused.returncode, "certificate verify failed" in refused.stderr) == (1, True)
        # On the server's machine, with its settings, its own certificate is trusted.
        own = {"BATON_TLS_CERT": str(files.cert), "BATON_TLS_KEY": str(files.key), "BATON_PORT": url.rpartition(":")[2]}
        reloaded = baton("admin", "reload-tls", **own)
        assert (reloaded.returncode, reloaded.stdout) == (0, "The certificate was read again.\n"), reloaded.stderr
        missing = baton("admin", "reload-tls", "--url", url, BATON_TLS_CERT=str(tmp_path / "absent"))
        assert (missing.returncode, "tls_cert: " in missing.stderr) == (1, True)


def test_a_take_over_goes_on_with_the_certificate_of_the_new_server(tmp_path: Path) -> None:
    old, new = (write_certificate(tmp_path, AUTHORITY, name) for name in ("old", "new"))
    trusted = ssl.create_default_context()
    AUTHORITY.configure_trust(trusted)
    port = str(port_for_later())
    arguments = ["-m", "cli", "serve", "--backend", "scripted", "--port", port]
    body = {"model": "scripted", "prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
    statuses: list[int] = []
    over = threading.Event()
    with serving([*arguments, *flags(old)]) as first:
        url = url_of(read_until(first, "ready"))

        def ask() -> None:
            while not over.is_set():
                statuses.append(httpx.get(f"{url}/health/live", verify=trusted, trust_env=False).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            with (
                httpx.Client(base_url=url, verify=trusted, trust_env=False, timeout=100) as client,
                client.stream("POST", "/v1/completions", json=body) as response,
                serving([*arguments, *flags(new), "--take-over"]) as second,
            ):
                lines = response.iter_lines()
                next(lines)
                read_until(second, "ready")
                assert [line for line in lines if line][-1] == "data: [DONE]"
                response.close()
                client.close()
                assert first.wait(timeout=100) == 0
                with httpx.stream("GET", f"{url}/v1/models", verify=trusted, trust_env=False) as after:
                    subject = after.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()["subject"]
                assert (("commonName", "new"),) in subject
                over.set()
                asking.join()
        finally:
            over.set()
            asking.join()
    assert set(statuses) == {200}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tls-cert", "server.crt"], "--tls-cert needs --tls-key: they go together"),
        (
            ["--tls-cert", "server.crt", "--tls-key", "other.key"],
            "tls_key: other.key is not the key of",
        ),
        (["--tls-cert", "absent.crt", "--tls-key", "server.key"], "tls_cert: absent.crt cannot be read: No such file"),
    ],
)
def test_files_that_are_wrong_end_the_start(
    tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server", "other"):
        write_certificate(tmp_path, AUTHORITY, name)
    ended = baton(*SERVE[2:], *words)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert message in " ".join(ended.stderr.split())
