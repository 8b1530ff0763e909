"""Child process of `bench/actors.py`: the other end of one link, which a JSON object describes.

python bench/links/children.py '{"kind": "pipe", "address": "7", "frames": 100}'
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from bench.links.bare_zmq import reader_child, zmq_asyncio_child, zmq_child
from bench.links.baton_link import link_child
from bench.links.meter import ChildSpec
from bench.links.pipe import pipe_child


def main(text: str) -> None:
    """Run what `text`, a `ChildSpec` as JSON, describes. Raises `msgspec.ValidationError`."""
    spec = msgspec.json.decode(text, type=ChildSpec)
    match spec.kind:
        case "link":
            asyncio.run(link_child(spec.address, spec.frames))
        case "zmq":
            zmq_child(spec.address, spec.frames)
        case "zmq_asyncio":
            asyncio.run(zmq_asyncio_child(spec.address, spec.frames))
        case "reader":
            asyncio.run(reader_child(spec.address, spec.frames))
        case "pipe":
            pipe_child(spec.address, spec.frames)


if __name__ == "__main__":
    main(*sys.argv[1:])
