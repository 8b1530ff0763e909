"""llama.cpp, the peer of the engine's benchmarks: built from source in one command, and driven from Python.

    python bench/peers/llama_cpp.py [--jobs 2] [--cpu host] [--folder DIR]

The source is the one inside the llama-cpp-python package, which pip downloads; cmake and a C++ compiler must be
installed. The build is for this CPU (GGML_NATIVE), or for the instructions of another one that --cpu names, and takes
about ten minutes on two cores. It is kept in Baton's cache folder, where `bench/engine.py` finds it; `--llama-cpp DIR`
there names any other folder with the programs. With --smoke nothing is downloaded or built: it prints what there is,
and runs each program of a kept build once.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.child_server import NotReadyError, free_port, running
from bench.harness.command_line import at_least, command_line, parsed
from bench.peers.build import CPU_OPTIONS, TOOLS, PeerError, Source

QUANTIZE = "llama-quantize"
PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench", QUANTIZE)
LLAMA_CPP = Source(
    "llama.cpp",
    "llama-cpp-python",
    "0.3.36",  # llama.cpp 0.5.0-dev
    PROGRAMS,
    {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_OPENSSL": "OFF",
    },
)
START_TIMEOUT_S = 120
TRIES = 5
"""Runs of llama-batched-bench: on a busy machine it may end before the thread that prints has printed."""
GREEDY = {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1, "cache_prompt": False}
"""Fields of a request that make llama-server take the most likely token at the least cost, and compute the prompt."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The programs in one folder, run with a fixed number of threads."""

    folder: Path
    threads: int
    server_options: tuple[str, ...] = ("--no-ui", "--log-disable")

    @classmethod
    def find(cls, folder: Path | None, threads: int, cpu: str = "host") -> "LlamaCpp":
        """The build in `folder`, or the kept one for a CPU. Raises `PeerError` when a program is missing."""
        folder = folder or LLAMA_CPP.folder(cpu) / "bin"
        missing = LLAMA_CPP.missing(folder)
        if missing:
            command = f"python bench/peers/llama_cpp.py --cpu {cpu}"
            raise PeerError(f"{folder} has no {' and no '.join(missing)}: run {command} first")
        return cls(folder, threads)

    def with_options(self, *options: str) -> "LlamaCpp":
        """The same build, with further options of llama-server."""
        return replace(self, server_options=(*self.server_options, *options))

    def prefill(self, model: Path, tokens: int) -> float:
        """Prompt tokens a second of one prompt, by llama-bench."""
        return self._bench(model, "-p", str(tokens), "-n", "0")

    def decode(self, model: Path, streams: int, prompt: int, tokens: int) -> float:
        """Generated tokens a second of `streams` sequences together, after `prompt` tokens each.

        One sequence is measured by llama-bench, several in a batch by llama-batched-bench.
        """
        if streams == 1:
            return self._bench(model, "-p", "0", "-n", str(tokens), "-d", str(prompt))
        sizes = {"-c": streams * (prompt + tokens), "-npp": prompt, "-ntg": tokens, "-npl": streams}
        words = [str(word) for size in sizes.items() for word in size]
        shared = ["-pps"]  # one prompt for all sequences, which is computed once
        for _ in range(TRIES):
            try:
                output = self._run("llama-batched-bench", "-m", str(model), *words, *shared, "--output-format", "jsonl")
            except PeerError:
                if not shared:
                    raise
                shared = []  # a recurrent state cannot be copied in the middle of a batch
                continue
            if (found := re.search(r"^\{.*\}$", output, re.MULTILINE)) is not None:
                return float(json.loads(found[0])["speed_tg"])
        raise PeerError(f"llama-batched-bench printed no result: {output[-300:]!r}")

    @contextmanager
    def server(self, model: Path, slots: int, context: int, kv: str = "f16") -> Iterator[str]:
        """llama-server with `slots` sequences of `context` tokens each; the URL, until the block ends.

        `kv` is the type of its KV cache; "f16" is llama.cpp's own default.
        """
        port = free_port()
        options = ["-m", model, "-np", slots, "-c", slots * context, "-t", self.threads, "--port", port]
        options += ["-ctk", kv, "-ctv", kv, "--cache-ram", 0, "--no-context-shift", *self.server_options]
        command = [str(self.folder / "llama-server"), *map(str, options)]
        url = f"http://127.0.0.1:{port}"
        try:
            with running(command, f"{url}/health", START_TIMEOUT_S, stderr=subprocess.DEVNULL):
                yield url
        except NotReadyError as error:
            raise PeerError(f"llama-server {error}") from error

    def _bench(self, model: Path, *lengths: str) -> float:
        output = self._run("llama-bench", "-m", str(model), *lengths, "-r", "1", "-o", "json")
        return float(json.loads(output)[0]["avg_ts"])

    def _run(self, program: str, *arguments: str) -> str:
        """Run a program and return what it prints on stdout."""
        return self._finished(program, *arguments).stdout

    def _finished(self, program: str, *arguments: str, folder: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program, in `folder` if it is given. Raises `PeerError` if it fails."""
        command = [str(self.folder / program), *arguments, "-t", str(self.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            raise PeerError(f"{program} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done


def complete(url: str, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens after a prompt of token ids, from a llama-server."""
    return [int(token) for token in completion(url, prompt, tokens)["tokens"]]


def completion(url: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """A llama-server's answer to a prompt of token ids."""
    body = GREEDY | {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "return_tokens": True}
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def check(folder: Path) -> bool:
    """Print what a build needs and has. Returns whether every program that was built runs."""
    for name in TOOLS:
        print(f"{name}: {shutil.which(name) or 'not installed'}")
    good = True
    for name in PROGRAMS:
        file = folder / "bin" / name
        if file.is_file():
            runs = subprocess.run([file, "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0
            good &= runs
            print(f"{name}: {'runs' if runs else 'does not run'}")
        else:
            print(f"{name}: not built")
    return good


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, help="compilers at once")
    parser.add_argument("--cpu", choices=list(CPU_OPTIONS), default="host", help="whose instructions are used")
    parser.add_argument("--folder", type=Path, help="to build in")
    args = parsed(parser, words, smoke={})
    args.folder = args.folder or LLAMA_CPP.folder(args.cpu)
    return args


def main() -> None:
    args = arguments()
    if args.smoke:
        sys.exit(0 if check(args.folder) else 1)
    try:
        LLAMA_CPP.build(args.folder, args.jobs, args.cpu)
    except PeerError as error:
        sys.exit(f"llama.cpp: {error}")
    print(f"llama.cpp is in {args.folder / 'bin'}")


if __name__ == "__main__":
    main()
