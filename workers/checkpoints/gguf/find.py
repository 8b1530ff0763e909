"""Finds the GGUF file that a path or a quantization's name means."""

import re
from collections.abc import Iterable
from pathlib import Path

from workers.checkpoints.gguf.gguf_file import SHARD
from workers.checkpoints.json_files import CheckpointError

SUFFIX = ".gguf"
DEFAULT = "Q4_K_M"
"""The quantization that is taken of several, as llama.cpp and Ollama do."""
_OTHER_PARTS = re.compile(r"(mmproj|mtp|imatrix)[-_.]|.*[-_.](mmproj|imatrix)", re.IGNORECASE)
"""Names of files that hold projectors of images, draft heads or statistics beside a model."""
_PROJECTOR = re.compile(r"(.*[-_.])?mmproj([-_.].*)?\.gguf", re.IGNORECASE)
_PRECISION = re.compile(r"[-_.](i?q\d\w*|b?f\d\d)$", re.IGNORECASE)
"""The end of a name without its suffix that tells the type of most weights."""
MMPROJ_AUTO, MMPROJ_NONE = "auto", "none"
"""The settings that take the projector beside a model, and none."""


def gguf_path(path: Path) -> Path | None:
    """Return the GGUF file of a model: `path` itself, or the only one of a folder without safetensors; None for what is
    no GGUF model. Any shard stands for all. Raises `CheckpointError` for a folder with several."""
    if path.suffix == SUFFIX and not path.is_dir():
        return first_file(path)
    if not path.is_dir() or any(path.glob("*.safetensors*")):
        return None
    files = models(file.name for file in path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise CheckpointError(path, "", f"has several models, name one of them: {', '.join(files[:8])}")
    return path / files[0] if files else None


def first_file(path: Path) -> Path:
    """Return the first file of the model that a file is a part of."""
    match = SHARD.fullmatch(path.name)
    return path if match is None else path.with_name(f"{match[1]}-00001-of-{match[3]}{SUFFIX}")


def models(names: Iterable[str]) -> list[str]:
    """Return the first files of the models among the names of a folder's files, sorted."""
    found = {first_file(Path(name)).name for name in names if name.endswith(SUFFIX)}
    return sorted(name for name in found if _OTHER_PARTS.match(name) is None)


def quantization_of(names: Iterable[str], model: str) -> str:
    """Return what `choose` finds a model by, among the names of a folder's files: the last part of its name, or all of
    it if others end in the same way."""
    match, known = SHARD.fullmatch(model), list(names)
    stem = model.removesuffix(SUFFIX) if match is None else match[1]
    last = re.split(r"[-.]", stem)[-1]
    return last if last and choose(known, last) == model else stem


def choose(names: Iterable[str], quantization: str) -> str | None:
    """Return the model of a quantization by the names of a folder's files: `Q4_K_M` finds `NAME-Q4_K_M.gguf`. Without
    one it is the only model there, or that of `DEFAULT`. None for none, and for several."""
    found = models(names)
    if not quantization and len(found) == 1:
        return found[0]
    wanted = re.compile(rf"(^|.*[-._]){re.escape(quantization or DEFAULT)}([-._]\d{{5}}-of-\d{{5}})?", re.IGNORECASE)
    fitting = [name for name in found if wanted.fullmatch(name.removesuffix(SUFFIX))]
    return fitting[0] if len(fitting) == 1 else None


def projectors(names: Iterable[str]) -> list[str]:
    """Return the projectors of images among the names of a folder's files, sorted."""
    return sorted(name for name in names if _PROJECTOR.fullmatch(name))


def choose_projector(names: Iterable[str], model: str, quantization: str = "") -> str | None:
    """Return the projector for a model file by the names of the files of their folder; None for none, and for several
    of which the right one is not clear.

    Of several whose names differ by their precision alone it is the one whose number of bits is closest to the
    model's, as in llama.cpp. With `quantization` it is the only one of that precision.
    """
    found = projectors(names)
    if quantization:
        found = [name for name in found if _precision(name).lower() == quantization.lower()]
    if len({_PRECISION.sub("", name.removesuffix(SUFFIX)).lower() for name in found}) > 1:
        return None
    wanted = _bits(quantization_of([model], model))
    return min(found, key=lambda name: (abs(_bits(_precision(name)) - wanted), name), default=None)


def _precision(name: str) -> str:
    match = _PRECISION.search(name.removesuffix(SUFFIX))
    return match[1] if match else ""


def _bits(precision: str) -> int:
    """The first number in the name of a precision; 0 without one."""
    match = re.search(r"\d+", precision) if _PRECISION.fullmatch(f"-{precision}") else None
    return int(match[0]) if match else 0


def projector_path(model: Path, mmproj: str = MMPROJ_AUTO) -> Path | None:
    """Return the file of the projector of images that belongs to a model: the one that a setting names, or, by default,
    the one beside its GGUF file; None for none. Raises `CheckpointError` for a setting beside a model that is no GGUF
    file."""
    file = gguf_path(model)
    if mmproj not in (MMPROJ_AUTO, MMPROJ_NONE) and file is None:
        raise CheckpointError(
            model, "", f"is no GGUF file, and has its vision tower in itself: leave the projector {mmproj} out"
        )
    if file is None or mmproj == MMPROJ_NONE:
        return None
    if mmproj != MMPROJ_AUTO:
        return first_file(Path(mmproj))
    name = choose_projector((each.name for each in file.parent.glob(f"*{SUFFIX}")), file.name)
    return None if name is None else file.parent / name
