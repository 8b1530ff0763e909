"""Options that several benchmarks have."""

import argparse
from pathlib import Path

from bench.harness.folders import RESULTS, default_cache, smoke_results
from bench.harness.shapes import SHAPES

SMOKE_SLOTS, SMOKE_CONTEXT = 2, 1024
"""Batch size and context of the tiny shape with `--smoke`. All scripts share them, so that its graphs are compiled
once."""

BACKENDS = ("iree", "mlx")


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="keeps compiled graphs and made models")


def add_out(parser: argparse.ArgumentParser, name: str) -> dict[str, Path]:
    """Returns the default of `--smoke`."""
    parser.add_argument("--out", type=Path, default=RESULTS / name, help="the folder of tables, figures and plots")
    return {"out": smoke_results(name)}


def add_model(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--model", choices=sorted(SHAPES), default=default, help="the shape, of random weights")


def add_quantize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quantize", choices=["int8", "int4"], default="", help="of the weights; bfloat16 without")


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=BACKENDS, default="iree", help="what computes")
