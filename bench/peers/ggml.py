"""llama.cpp and its fork ik_llama.cpp as peers: llama-bench and llama-batched-bench warm, llama-server cold."""

import re
import tempfile
import urllib.error
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from bench.measurement.rounds import RefusedError
from bench.peers.build import PeerError, Source
from bench.peers.llama_cpp import LLAMA_CPP, PROGRAMS, LlamaCpp, completion
from bench.peers.peer import RivalModel, Session
from bench.peers.precisions import PRECISIONS
from bench.peers.weights.to_gguf import convert

IK_LLAMA = Source(
    "ik_llama.cpp",
    "ik-llama-cpp-python",
    "0.1.5",
    PROGRAMS,
    {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_CURL": "OFF",
        # Attention for types of KV that no benchmark uses takes most of the time of a build.
        "GGML_IQK_FA_ALL_QUANTS": "OFF",
        "CMAKE_CXX_FLAGS": "-w",  # GCC has a hundred thousand lines of warnings
    },
    {
        "common/cmake/build-info-gen-cpp.cmake": "set(BUILD_NUMBER 0)\n"
        "configure_file(common/build-info.cpp.in common/build-info.cpp)\n"
    },
)


class GgmlSession:
    """The programs of one build, and a running llama-server."""

    def __init__(self, programs: LlamaCpp, file: Path, slots: int, context: int) -> None:
        """Raises `PeerError` if the server does not start."""
        self._programs, self._file = programs, file
        self._server = ExitStack()
        self._url = self._server.enter_context(programs.server(file, slots, context))

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        return self._programs.decode(self._file, streams, prompt, tokens)

    def prefill(self, length: int) -> float:
        return self._programs.prefill(self._file, length)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(int(answer["tokens_predicted"]) for answer in pool.map(self._answer, prompts, repeat(tokens)))

    def complete(self, prompt: Sequence[int], tokens: int) -> list[int]:
        answer = self._answer(prompt, tokens)
        if "tokens" not in answer:
            raise RefusedError("its server returns no token ids")
        return [int(token) for token in answer["tokens"]]

    def _answer(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        try:
            return completion(self._url, list(prompt), tokens)
        except urllib.error.HTTPError as error:
            # ik_llama.cpp fails after the last token if the text is not UTF-8, as that of random weights may be.
            if b"invalid UTF-8" in (text := error.read()):
                return {"tokens_predicted": tokens}
            raise RefusedError(f"its server answered {error.code}: {text[-200:]!r}") from error

    def close(self) -> None:
        self._server.close()


class IkLlama(LlamaCpp):
    """ik_llama.cpp's programs, which have other options. Weights are repacked while they load (-rtr), as its
    documentation advises."""

    def decode(self, model: Path, streams: int, prompt: int, tokens: int) -> float:
        sizes = {"-c": streams * (prompt + tokens), "-npp": prompt, "-ntg": tokens, "-npl": streams}
        words = [str(word) for size in sizes.items() for word in size]
        # With several sequences, flash attention ends in a failed assertion of the fork (iqk_fa_templates.h: S > 0).
        words += ["-rtr", "-fa", "on" if streams == 1 else "off"]
        with tempfile.TemporaryDirectory() as folder:  # it writes a log into the current one
            done = self._finished("llama-batched-bench", "-m", str(model.resolve()), *words, folder=folder)
        return table_rate(done.stderr)

    def prefill(self, model: Path, tokens: int) -> float:
        return self._bench(model, "-p", str(tokens), "-n", "0", "-rtr", "1", "-fa", "1")


def table_rate(output: str) -> float:
    """The generated tokens a second in the table that ik_llama.cpp's llama-batched-bench prints.

    Raises `PeerError` if there is none.
    """
    rows = re.findall(r"^\|(?: *[\d.]+ \|){10}$", output, re.MULTILINE)
    if not rows:
        raise PeerError(f"llama-batched-bench printed no result: {output[-300:]!r}")
    return float(rows[-1].split("|")[8])


@dataclass(frozen=True, slots=True)
class GgmlPeer:
    """llama.cpp or a fork, built from its source, with the same weights as GGUF."""

    name: str
    source: Source
    programs: Callable[[Path, int], LlamaCpp]
    settings: str

    @property
    def about(self) -> str:
        return f"{self.source.name} in {self.source.package} {self.source.version}; {self.settings}"

    def refusal(self, precision: str, cpu: str) -> str:
        missing = self.source.missing(self.source.folder(cpu) / "bin")
        return f"not built for {cpu}: run python bench/peers/install.py {self.name} --cpu {cpu}" if missing else ""

    def install(self, cpu: str, jobs: int) -> None:
        folder = self.source.folder(cpu)
        if self.source.missing(folder / "bin"):
            self.source.build(folder, jobs, cpu)

    def prepare(self, model: RivalModel) -> None:
        if not (file := gguf_file(model)).exists():
            convert(model.path, file, PRECISIONS[model.precision].gguf)

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        programs = self.programs(self.source.folder(model.cpu) / "bin", model.threads)
        return GgmlSession(programs, gguf_file(model), model.slots, model.context)


def gguf_file(model: RivalModel) -> Path:
    """The GGUF file of a model, which `bench/engine.py` uses as well."""
    return model.path.with_name(f"{model.path.name}-{PRECISIONS[model.precision].gguf}.gguf")


def _ik(folder: Path, threads: int) -> IkLlama:
    return IkLlama(folder, threads, ("--webui", "none", "-rtr", "-fa", "off", "--log-disable"))


LLAMA_CPP_PEER = GgmlPeer("llama.cpp", LLAMA_CPP, LlamaCpp, "Q8_0 for int8 and Q4_0 for int4")
IK_LLAMA_PEER = GgmlPeer(
    "ik_llama.cpp", IK_LLAMA, _ik, "the same files, repacked (-rtr), with flash attention for one sequence"
)
