"""Gaps of streams when a machine of a Ray cluster is lost, and the time until the fleet is whole again.

    python bench/scale_out/ray_node_loss.py [--streams 64] [--nodes 3] [--tokens 800]

Each node is a few processes of this machine and has one scripted worker of 40 tokens a second, placed by `baton scale`.
The streams are read once undisturbed. Then they are read again, and all processes of one node get SIGKILL while they
run; another node is added at once. Needs the extra `ray`. There is neither a peer nor a limit.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.command_line import at_least, command_line, parsed
from bench.scale_out.placed_fleet import PlacedFleet, placed_fleet, start_streams, texts_of


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=at_least(1), default=64, metavar="N", help="streams at once")
    parser.add_argument("--nodes", type=at_least(2), default=3, metavar="N", help="nodes, each with a worker")
    parser.add_argument("--tokens", type=at_least(100), default=800, metavar="N", help="tokens of a stream")
    return parsed(parser, words, smoke={"streams": 4, "nodes": 2, "tokens": 200})


def measure(fleet: PlacedFleet, count: int, tokens: int) -> str:
    """Lose a node under streams. Returns the line of figures."""
    expected = texts_of(start_streams(fleet.url, count, tokens))
    streams = start_streams(fleet.url, count, tokens)
    while sum((active := _active(fleet)).values()) < count:
        time.sleep(0.05)
    time.sleep(1.0)
    lost_at = time.time()
    fleet.nodes.do("lose 0")
    fleet.nodes.do("add")
    texts = texts_of(streams)
    noticed, whole = fleet.scale.until("place_lost"), fleet.scale.until("fleet_complete")
    moved = active[noticed["worker"]]
    gaps = sorted((stream.gap_s for stream in streams), reverse=True)
    lost = sum(not text for text in texts)
    altered = sum(bool(text) and text != right for text, right in zip(texts, expected, strict=True))
    others_s = gaps[moved] if moved < count else 0.0
    return (
        f"{count} streams: {lost} lost, {altered} altered; {moved} moved, with a gap of {gaps[moved - 1]:.3f} to "
        f"{gaps[0]:.3f} s, longest gap of the others {others_s:.3f} s; place lost after {_since(lost_at, noticed):.1f} "
        f"s, fleet whole after {_since(lost_at, whole):.1f} s"
    )


def _active(fleet: PlacedFleet) -> dict[str, int]:
    return {name: worker["slots_active"] for name, worker in fleet.workers().items()}


def _since(began: float, line: Mapping[str, Any]) -> float:
    """Seconds from a time to a line of a log."""
    return datetime.fromisoformat(line["timestamp"]).timestamp() - began


def main() -> None:
    """Run the measurement."""
    args = arguments()
    if find_spec("ray") is None:
        print("ray is not installed: pip install '.[ray]'")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        placed_fleet(Path(folder), args.nodes, slots=args.streams) as fleet,
    ):
        print(measure(fleet, args.streams, args.tokens))


if __name__ == "__main__":
    main()
