"""Process that fetches a model: `workers.hub ORG/NAME@REVISION` downloads what the cache lacks of it. With `adapter` as
another argument it is a LoRA adapter.

It prints JSON objects, one on a line: `{"done": 3, "total": 9}` with the bytes that have arrived and those that are to
arrive, and at the end the folder of the model, `{"path": "..."}`, or why it cannot be had, `{"problem": "...", "cause":
"..."}`, the cause one of `HubCause` or empty. It ends with its parent.
"""

import json
import os
import sys

from actors.process.logs import configure_logging
from actors.process.parent_death import ParentWatch
from protocol.hub_id import HubId, not_hub_id
from workers.errors import LoadRefused
from workers.hub.adapter import AdapterDownload
from workers.hub.download import Download
from workers.hub.errors import HubError


def main(name: str, kind: str = "model") -> None:
    """Fetch the model, or the adapter, with this hub id."""
    configure_logging("hub", "warning")
    ParentWatch(_end, kill=_end).start()
    model = HubId.parse(name)
    if model is None:
        _print({"problem": not_hub_id(name), "cause": ""})
        return
    try:
        download = AdapterDownload(model) if kind == "adapter" else Download(model)
        path = download.cached()
        if path is None:
            path = download.run(download.plan(), lambda done, total: _print({"done": done, "total": total}))
        _print({"path": str(path)})
    except LoadRefused as error:
        _print({"problem": str(error), "cause": str(error.cause) if isinstance(error, HubError) else ""})


def _print(line: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")  # at once: several threads report progress


def _end() -> None:
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
