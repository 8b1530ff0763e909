"""The first token of mlx-lm itself, without and with its prompt cache, in this process."""

import random
import statistics
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_model

from bench.harness.shapes import TOKENS


def first_token_ms(model: Any, tokens: list[int], cache: list[Any]) -> float:
    """Return the milliseconds until mlx-lm has the first token after a prompt, whose KV is added to `cache`."""
    began = time.perf_counter()
    next(generate_step(mx.array(tokens), model, max_tokens=1, prompt_cache=cache))
    return 1e3 * (time.perf_counter() - began)


def measure(checkpoint: Path, prompt: int, question: int, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds to the first token of a question after a system prompt: cold, and with the KV of
    the system prompt in a prompt cache. The first round, which loads what is loaded once, does not count."""
    model, _ = load_model(checkpoint)
    randomness = random.Random(1)
    cold, warm = [], []
    for _ in range(rounds + 1):
        system, asked = (randomness.choices(TOKENS, k=count) for count in (prompt, question))
        cold.append(first_token_ms(model, system + asked, make_prompt_cache(model)))
        cache = make_prompt_cache(model)
        first_token_ms(model, system, cache)
        trim_prompt_cache(cache, cache[0].offset - prompt)
        warm.append(first_token_ms(model, asked, cache))
    return statistics.median(cold[1:]), statistics.median(warm[1:])
