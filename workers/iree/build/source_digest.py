"""The digest of the source code that a graph is made of: one module and, transitively, all of ours that it imports.

An edit outside of them leaves the compiled graphs of every user valid; an edit inside, in any sub-package, does not.
"""

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[__name__.count(".")]
"""The folder that has our packages."""
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.MULTILINE
)
"""One import statement. Parsing with `ast` would take a tenth of a worker's start; a test compares the two."""
_NAME = re.compile(r"[\w.]+")


@functools.cache
def source_digest(module: str, root: Path = ROOT) -> str:
    """Return the hexadecimal SHA-256 over the names and texts of `source_files`."""
    digest = hashlib.sha256()
    for name, file in sorted(source_files(module, root).items()):
        text = file.read_bytes()
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def source_files(module: str, root: Path = ROOT) -> dict[str, Path]:
    """Return the files of `module`, of everything it imports that lies under `root`, and of the packages around them.

    Imports inside functions count. Raises `LookupError` when there is no such module.
    """
    files: dict[str, Path] = {}
    if _file_of(module, root) is None:
        raise LookupError(f"{root} has no module {module}")
    pending = [module]
    while pending:
        name = pending.pop()
        if name in files or (file := _file_of(name, root)) is None:
            continue
        files[name] = file
        pending += [name.rpartition(".")[0], *imported_modules(file.read_text())]
    return files


def imported_modules(source: str) -> Iterator[str]:
    """Yield the modules that a source may import: of `from a import b` both `a` and `a.b`, for `b` may be a module."""
    for package, names, plain in _IMPORT.findall(source):
        if package:
            yield package
            yield from (f"{package}.{name}" for name in _NAME.findall(names))
        else:
            yield from _NAME.findall(plain)


def _file_of(module: str, root: Path) -> Path | None:
    """Return None for what is no module of ours: a library, or a name inside a module."""
    path = root.joinpath(*module.split("."))
    found = (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())
    return next(found, None) if module else None
