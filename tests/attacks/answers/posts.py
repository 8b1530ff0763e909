"""Requests of the attacks with large answers."""

import json
from pathlib import Path
from typing import Any

from tests.attacks.server import AttackedServer

JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LOGPROBS = {"logprobs": True, "top_logprobs": 20}
"""The options of a chat with the largest answer: some 1,240 bytes of JSON for each token."""


def chat(**fields: Any) -> str:
    """The body of a chat that generates all the tokens it may."""
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "scripted", "messages": messages, "ignore_eos": True} | fields)


def completion(**fields: Any) -> str:
    """The body of a completion that generates all the tokens it may."""
    return json.dumps({"model": "scripted", "prompt": "hi", "ignore_eos": True} | fields)


def peak_rss(server: AttackedServer) -> int:
    """The largest resident memory of the gateway so far, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
