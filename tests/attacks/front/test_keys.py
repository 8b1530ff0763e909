"""Keys that change while the server runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.attacks.server import HOST, ROOT, AttackedServer, attacked_server

JSON = {"content-type": "application/json"}


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **JSON}


def reload_keys(server: AttackedServer, key: str) -> "subprocess.CompletedProcess[str]":
    """Run the command of an operator."""
    command = [sys.executable, "-m", "cli", "admin", "reload-keys", "--url", f"http://{HOST}:{server.port}"]
    environment = os.environ | {"BATON_ADMIN_KEY": key}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_stolen_key_is_revoked_without_ending_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:a\nthief:t\n")
    file.chmod(0o600)
    with attacked_server(tmp_path, "--api-keys-file", str(file), BATON_ADMIN_KEY="root") as server:
        body = {"model": "scripted", "prompt": "hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with server.connect() as stream:
            raw = json.dumps(body).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
            stream.sendall(head.encode() + raw)
            received = stream.recv(65536)
            assert received.startswith(b"HTTP/1.1 200")
            file.write_text("alice:a\nnonsense\n")
            refused = reload_keys(server, "root")
            assert refused.returncode == 1
            assert "line 2" in refused.stderr
            assert server.request("GET", "/v1/models", headers=with_key("t"))[0] == 200
            file.write_text("alice:a\nbob:b\n")
            done = reload_keys(server, "root")
            assert (done.returncode, done.stdout) == (0, "added: bob\nremoved: thief\naccepted: alice, bob\n")
            statuses = {key: server.request("GET", "/v1/models", headers=with_key(key))[0] for key in "atb"}
            assert statuses == {"a": 200, "t": 401, "b": 200}
            while part := stream.recv(65536):
                received += part
        assert b"data: [DONE]" in received
        assert b'"error"' not in received
        log = server.log.read_text()
        assert "keys_reloaded" in log
        assert '"t"' not in log


def test_a_clients_key_does_not_administer(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:a\n")
    file.chmod(0o600)
    with attacked_server(tmp_path, "--api-keys-file", str(file)) as server:
        for route in ("/admin/restart", "/admin/keys/reload", "/admin/reload", "/admin/workers/w0/drain"):
            status, answer = server.request("POST", route, "{}", with_key("a"))
            assert (status, json.loads(answer)["error"]["code"]) == (403, "admin_key_needed"), route
            assert server.request("POST", route, "{}", JSON)[0] == 401, route
