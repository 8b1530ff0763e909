"""mlx-vlm's server as a peer of `bench/gateway_load/images.py`, installed in one command.

    python bench/peers/mlx_vlm.py

It is not one of `bench/peers/rivals.py`, which measure text alone. With --smoke nothing is installed: it prints what
there is.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.child_server import NotReadyError, free_port, running
from bench.harness.command_line import command_line, parsed
from bench.peers.build import PeerError
from bench.peers.environment import Environment

ENVIRONMENT = Environment("mlx-vlm", ("mlx-vlm[cpu]==0.7.10" if sys.platform == "linux" else "mlx-vlm==0.7.10",))
START_TIMEOUT_S = 120


def described_for_mlx_vlm(model: Path, folder: Path) -> None:
    """Link a checkpoint into `folder`, with the rotary fields of transformers 4 in its config, which mlx-vlm reads."""
    for file in model.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text())
    text = config["text_config"]
    scaling = dict(text["rope_parameters"])
    text["rope_theta"], text["rope_scaling"] = scaling.pop("rope_theta"), scaling
    (folder / "config.json").write_text(json.dumps(config))


@contextmanager
def mlx_vlm_server(model: Path) -> Iterator[tuple[str, str]]:
    """Serve a checkpoint until the block ends; the URL, and the model's name there.

    Raises `PeerError` if mlx-vlm is not installed or does not start.
    """
    if not ENVIRONMENT.python.is_file():
        raise PeerError("mlx-vlm is not installed: run python bench/peers/mlx_vlm.py")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory() as name:
        described_for_mlx_vlm(model, Path(name))
        command = [str(ENVIRONMENT.python), "-m", "mlx_vlm.server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--model", name]
        try:
            with running(command, f"{url}/health", START_TIMEOUT_S, stderr=subprocess.DEVNULL):
                yield url, name
        except NotReadyError as error:
            raise PeerError(f"mlx-vlm's server {error}") from error


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    return parsed(command_line(__doc__), words, smoke={})


def main() -> None:
    args = arguments()
    if args.smoke:
        print(f"mlx-vlm: {'installed' if ENVIRONMENT.python.is_file() else 'not installed'}")
        return
    try:
        ENVIRONMENT.install()
    except PeerError as error:
        sys.exit(f"mlx-vlm: {error}")


if __name__ == "__main__":
    main()
