"""Installs the peers of `bench/peers/rivals.py`, each in a place of its own in Baton's cache folder.

    python bench/peers/install.py [llama.cpp ik_llama.cpp openvino vllm onnxruntime] [--cpu avx2] [--jobs 2]

OpenVINO GenAI, vLLM and ONNX Runtime GenAI come as packages of pinned versions, each in a virtual environment of its
own; llama.cpp and ik_llama.cpp are built from the source inside Python packages of pinned versions, which needs cmake
and a C++ compiler and takes ten minutes and half an hour on two cores. What is installed is not installed again. The
converters need PyTorch: pip's own settings choose its build. With --smoke nothing is installed: it prints what there
is.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.command_line import at_least, command_line, parsed
from bench.peers.build import CPU_OPTIONS, PeerError
from bench.peers.catalogue import PEERS


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("peers", nargs="*", default=list(PEERS), help=f"of {', '.join(PEERS)}; all by default")
    parser.add_argument("--cpu", choices=list(CPU_OPTIONS), default="host", help="whose instructions builds use")
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, help="compilers at once")
    args = parsed(parser, words, smoke={})
    if unknown := set(args.peers) - PEERS.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    return args


def main() -> None:
    args = arguments()
    failed = []
    for key in args.peers:
        peer = PEERS[key]
        if args.smoke:
            print(f"{key}: {peer.refusal('int8', args.cpu) or 'installed'}")
            continue
        print(f"{key}: {peer.about}", flush=True)
        try:
            peer.install(args.cpu, args.jobs)
        except PeerError as error:
            failed.append(key)
            print(f"{key}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
