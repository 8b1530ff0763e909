"""The first token of llama-server: without its prompt cache, from a slot, and from a file of a slot after a restart."""

import json
import random
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.harness.shapes import TOKENS
from bench.peers.llama_cpp import GREEDY, LlamaCpp

NAMES = COLD, SLOT, FILE = "cold", "in its slot", "from a slot's file, after a restart"


def measure(programs: LlamaCpp, model: Path, prompt: int, question: int, rounds: int, context: int) -> dict[str, float]:
    """Return the median milliseconds to the first token of a question after a system prompt; the time to read a file
    is included. The first round does not count."""
    randomness = random.Random(1)
    systems = [randomness.choices(TOKENS, k=prompt) for _ in range(rounds + 1)]

    def asked(url: str, system: list[int]) -> float:
        began = time.perf_counter()
        _post(f"{url}/completion", GREEDY | {"prompt": system, "n_predict": 1, "cache_prompt": True, "id_slot": 0})
        return 1e3 * (time.perf_counter() - began)

    def with_question(system: list[int]) -> list[int]:
        return system + randomness.choices(TOKENS, k=question)

    found: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        saving = programs.with_options("--slot-save-path", folder)
        with saving.server(model, 1, context) as url:
            for number, system in enumerate(systems):
                found[COLD].append(asked(url, with_question(system)))
                found[SLOT].append(asked(url, with_question(system)))
                _post(f"{url}/slots/0?action=save", {"filename": str(number)})
        with saving.server(model, 1, context) as url:
            for number, system in enumerate(systems):
                began = time.perf_counter()
                _post(f"{url}/slots/0?action=restore", {"filename": str(number)})
                restored = 1e3 * (time.perf_counter() - began)
                found[FILE].append(restored + asked(url, with_question(system)))
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def _post(url: str, body: dict[str, Any]) -> None:
    sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=600) as answer:
        answer.read()
