"""Speculative decoding of one stream by Baton and by other engines, with the same weights, each beside itself without.

The answers of the model are known (bench/constructed/successor.py): those of `quote` are in the prompt, those of `new`
are not. The draft model agrees with 9 of 10 tokens.
"""

import asyncio
import random
import statistics
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.constructed.successor import answer, make_successor
from bench.harness.engine import Setup
from bench.harness.http import decode_rate, server
from bench.harness.settled import compile_graphs
from bench.harness.shapes import TOKENS
from bench.harness.sse_client import request
from bench.peers.llama_cpp import LlamaCpp, completion

AGREES = 0.9
PROMPT = 512
LOADS = ("quote", "new")
DRAFTED = 8
"""Tokens that llama.cpp and mlx-lm draft with a draft model at most; Baton drafts as many."""
MODES = OFF, LOOKUP, MODEL = "off", "lookup", "draft model"
Decode = Callable[[list[int], int], float]
"""Returns the tokens a second of the answer to a prompt, which has so many."""


def prompt_of(load: str, seed: int) -> list[int]:
    """Return a prompt that has its answer, or one that does not."""
    randomness = random.Random(seed)
    if load == "quote":
        return answer(randomness.choice(TOKENS), PROMPT)
    return randomness.choices(TOKENS[::2], k=PROMPT)  # no two of which follow each other


def measure(modes: Mapping[str, Decode], load: str, tokens: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median tokens a second of each mode, and that of its ratios to `off`. The modes take turns,
    and the first round does not count."""
    turns = [
        {mode: decode(prompt_of(load, seed), tokens) for mode, decode in modes.items()} for seed in range(rounds + 1)
    ][1:]
    return {
        mode: (
            statistics.median(turn[mode] for turn in turns),
            statistics.median(turn[mode] / turn[OFF] for turn in turns),
        )
        for mode in modes
    }


def table(engines: Mapping[str, Mapping[str, Decode]], tokens: int, rounds: int) -> Iterator[str]:
    """Yield the lines of engines by what drafts: tokens a second, and their ratio to those without drafts."""
    for name, modes in engines.items():
        for load in LOADS:
            shown = "".join(
                f"  {mode} {speed:7.1f}{'' if mode == OFF else f' ({ratio:.2f}x)'}"
                for mode, (speed, ratio) in measure(modes, load, tokens, rounds).items()
            )
            yield f"  {name:9} {load:6}{shown}"


def baton(
    stack: ExitStack, folder: Path, shape: str, small: str, backend: str, context: int, slots: int
) -> dict[str, Decode]:
    """Start a server for each mode, until the stack is closed: a step has as many rows as it has slots. Without a shape
    `small` there is no draft model."""
    model = make_successor(folder, shape)
    setup = Setup(model, folder / "graphs", slots, context, backend=backend)
    compile_graphs(setup.spec())
    words: dict[str, tuple[str, ...]] = {OFF: (), LOOKUP: ("--speculate", "auto")}
    if small:
        draft = make_successor(folder, small, AGREES)
        compile_graphs(replace(setup, path=draft).spec())
        words[MODEL] = ("--speculate", "auto", "--draft-model", str(draft))
    return {mode: _baton_decode(stack.enter_context(server(setup, *more))) for mode, more in words.items()}


def _baton_decode(url: str) -> Decode:
    def decode(prompt: list[int], tokens: int) -> float:
        body: dict[str, Any] = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return decode_rate([asyncio.run(request(urllib.parse.urlsplit(url), "/v1/completions", "", body))])

    return decode


def llama_cpp(stack: ExitStack, folder: Path, shape: str, small: str, threads: int, context: int) -> dict[str, Decode]:
    """Start a llama-server for each mode, until the stack is closed. Raises `PeerError` if it is not built."""
    from bench.peers.weights.to_gguf import convert  # only here: it ends a process without gguf

    programs = LlamaCpp.find(None, threads)
    files = []
    for path in (make_successor(folder, shape), make_successor(folder, small, AGREES)):
        files.append(path.with_name(f"{path.name}-bf16.gguf"))
        if not files[-1].exists():
            convert(path, files[-1])
    words = {
        OFF: (),
        LOOKUP: ("--spec-type", "ngram-simple"),
        MODEL: ("--spec-type", "draft-simple", "-md", str(files[1]), "--spec-draft-n-max", str(DRAFTED)),
    }
    urls = {
        mode: stack.enter_context(programs.with_options(*more).server(files[0], 1, context))
        for mode, more in words.items()
    }
    return {mode: _llama_decode(url) for mode, url in urls.items()}


def _llama_decode(url: str) -> Decode:
    def decode(prompt: list[int], tokens: int) -> float:
        found = completion(url, prompt, tokens)
        if found["tokens"] != answer(prompt[-1], tokens):
            sys.exit("llama.cpp's answer is another one")
        return float(found["timings"]["predicted_per_second"])

    return decode


def mlx_lm(folder: Path, shape: str, small: str) -> dict[str, Decode]:
    """Load mlx-lm in this process: it has no look-up."""
    import mlx.core as mx  # only here: not every machine has it
    from mlx_lm.generate import generate_step, speculative_generate_step
    from mlx_lm.utils import load_model

    model = load_model(make_successor(folder, shape))[0]
    draft = load_model(make_successor(folder, small, AGREES))[0] if small else None

    def timed(steps: Iterator[Any], prompt: list[int], tokens: int) -> float:
        found = [int(next(steps)[0])]
        began = time.perf_counter()
        found += [int(step[0]) for step in steps]
        took = time.perf_counter() - began
        if found != answer(prompt[-1], tokens):
            sys.exit("mlx-lm's answer is another one")
        return (tokens - 1) / took

    def plain(prompt: list[int], tokens: int) -> float:
        return timed(generate_step(mx.array(prompt), model, max_tokens=tokens), prompt, tokens)

    def drafted(prompt: list[int], tokens: int) -> float:
        steps = speculative_generate_step(mx.array(prompt), model, draft, num_draft_tokens=DRAFTED, max_tokens=tokens)
        return timed(steps, prompt, tokens)

    return {OFF: plain} if draft is None else {OFF: plain, MODEL: drafted}
