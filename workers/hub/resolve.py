"""Finds the directory or the GGUF file of the model that a user names."""

from pathlib import Path

from protocol.hub_id import HubId, not_hub_id
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.gguf.find import SUFFIX
from workers.checkpoints.json_files import A_MODEL
from workers.hub.download import Download


def resolve_model(path_or_hub_id: str, *, projector: bool = False) -> Path:
    """Return a local directory or GGUF file as it is, and a hub model's folder or file in the cache, after a download
    if it is not there. With `projector` that of a GGUF model, which its repository may have, is a part of it.

    A complete model in the cache is used without the network, even if the hub has a newer one. Raises `CheckpointError`
    if it is neither a directory, a GGUF file nor a hub id, and `HubError`.
    """
    model = hub_id(path_or_hub_id)
    if model is None:
        return Path(path_or_hub_id).expanduser()
    return _fetched(Download(model, projector="with" if projector else "without"))


def resolve_projector(path_or_hub_id: str) -> Path:
    """Return the GGUF file of a projector of images: a local file as it is, and that of a hub id like ORG/NAME or
    ORG/NAME:F16 in the cache, after a download if it is not there. Raises `CheckpointError` and `HubError`."""
    local = _local(path_or_hub_id)
    if local.is_file():
        return local
    model = None if local.suffix == SUFFIX else HubId.parse(path_or_hub_id)
    if model is None:
        raise CheckpointError(
            path_or_hub_id, "", "there is no such GGUF file, and it is not a hub id like ORG/NAME or ORG/NAME:F16"
        )
    return _fetched(Download(model, projector="alone"))


def _fetched(download: Download) -> Path:
    return download.cached() or download.run(download.plan())


def _local(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # of ~NAME
        raise CheckpointError(text, "", "there is no such user, or it has no home directory") from error


def hub_id(path_or_hub_id: str) -> HubId | None:
    """Return the hub id, or None for the path of a directory or of a GGUF file. Raises `CheckpointError` if it is none
    of these."""
    local = _local(path_or_hub_id)
    if path_or_hub_id and (local.is_dir() or (local.suffix == SUFFIX and local.is_file())):
        return None
    if path_or_hub_id and local.is_file():
        raise CheckpointError(path_or_hub_id, "", f"is a file; {A_MODEL}")
    model = HubId.parse(path_or_hub_id)
    if model is None:
        raise CheckpointError(
            path_or_hub_id, "", f"there is no such directory or GGUF file, and {not_hub_id(path_or_hub_id, 'it')}"
        )
    return model
