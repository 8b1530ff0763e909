"""GGUF files that llama.cpp's own tools make: its converter, and its quantizer."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.build import PeerError
from bench.peers.llama_cpp import QUANTIZE, LlamaCpp

CONVERTER = Path(__file__).resolve().parents[1] / "children" / "convert_to_gguf.py"
PLAIN = ("f32", "f16", "bf16")
"""Kinds that the converter writes; others are quantized from f32."""


def make_file(checkpoint: Path, file: Path, kind: str, peer: LlamaCpp, more: Sequence[str] = ()) -> None:
    """Write a GGUF file of `kind`, such as f16 or Q4_K_M; one like q4_0, in small letters, is of all matrices.

    `more` are options of the converter, such as `--mmproj` for the file of a vision tower.

    Raises `PeerError` if the tools fail, or if `peer` has no source beside it.
    """
    plain = file if kind in PLAIN else file.with_suffix(".f32")
    source = peer.folder.parent / "source"
    if not source.is_dir():
        raise PeerError(f"{source} is missing, which has llama.cpp's converter")
    paths = [str(CONVERTER), str(source), str(checkpoint), str(plain)]
    _run([sys.executable, *paths, kind if kind in PLAIN else "f32", *more])
    if plain != file:
        pure = ["--pure"] if kind.islower() else []
        _run([str(peer.folder / QUANTIZE), *pure, str(plain), str(file), kind.upper()])
        plain.unlink()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError((done.stderr.strip().splitlines() or ["no message"])[-1])
