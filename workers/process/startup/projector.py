"""The projector of images of a model in GGUF files: its digest, and the log event that names it."""

from pathlib import Path

import structlog

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.checkpoint import config_digest
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.gguf.find import MMPROJ_AUTO, MMPROJ_NONE, gguf_path, projector_path, projectors
from workers.checkpoints.lone_config import LoneConfig
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec
from workers.vision.tower import find_tower, no_images


def projector_digest(spec: WorkerSpec, config: ModelConfig | LoneConfig | EncoderConfig) -> str:
    """Return the digest of the projector that is served with a model; empty if none is.

    Raises `LoadRefused` for one that is named and would have no effect, and `CheckpointError` for one that cannot be
    read, or that is named and does not fit.
    """
    named = spec.mmproj not in (MMPROJ_AUTO, MMPROJ_NONE)
    if named and not spec.vision:
        raise LoadRefused("mmproj: has no effect without a vision tower: leave it out, or --no-vision")
    if not isinstance(config, ModelConfig):
        if named:
            raise LoadRefused(f"mmproj: a model of the family {config.family} takes no images: leave it out")
        return ""
    path = Path(spec.model_path)
    own = projector_path(path, spec.mmproj) if spec.vision else None
    if own is None or find_tower(path, spec.mmproj) is None:
        return ""
    return config_digest(own)


def log_projector(spec: WorkerSpec) -> None:
    """Log the projector that a model in GGUF files is served with, or why those beside it are not. Raises
    `CheckpointError`."""
    path = Path(spec.model_path)
    if spec.backend == "scripted" or not spec.vision or gguf_path(path) is None:
        return
    own, log = projector_path(path, spec.mmproj), structlog.get_logger()
    if own is None:
        file = gguf_path(path)
        assert file is not None  # it is a model in GGUF files
        if spec.mmproj == MMPROJ_AUTO and projectors(each.name for each in file.parent.glob("*.gguf")):
            log.warning("projector_left_out", path=str(file.parent), reason=no_images(path))
        return
    tower = find_tower(path, spec.mmproj)
    if tower is None or tower.projector is None:
        log.warning("projector_left_out", path=str(own), reason=no_images(path, spec.mmproj))
    else:
        log.info("projector_found", path=str(own), kind=tower.projector.file.type)
