"""The digest of the source code that a graph is made of: one module and, transitively, all of ours that it imports.

An edit outside of them leaves the compiled graphs of every user valid; an edit inside, in any sub-package, does not.
"""

import ast
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[__name__.count(".")]
"""The folder that has our packages."""
_METADATA = "importlib.metadata."
_PLAIN_IMPORT = re.compile(
    r"""
    (?<!\\\n)^[ \t]*
    (?:
        from [ \t]+ (?P<package>[A-Za-z_][\w.]*) [ \t]+ import [ \t]+
        (?P<names> [\w,\t ]+ | \( (?: [\w,\s] | \#[^\n]*\n )* \) )
    |
        import [ \t]+ (?P<modules> [\w.,\t ]+ )
    )
    (?: \#[^\n]* )? $
    """,
    re.MULTILINE | re.VERBOSE,
)
"""One import statement as it is usually written, alone in its lines."""
_IMPORT = re.compile(r"(?<![A-Za-z])import(?:lib)?(?![a-z])")
"""A word that another import statement would have."""
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

    Imports inside functions count. Raises `LookupError` when there is no such module, and `ImportError` for an import
    whose module the source does not name.
    """
    files: dict[str, Path] = {}
    if _file_of(module, root) is None:
        raise LookupError(f"{root} has no module {module}")
    seen, pending = {module}, [module]
    while pending:
        name = pending.pop()
        if (file := _file_of(name, root)) is None:
            continue
        files[name] = file
        try:
            found = {name.rpartition(".")[0], *imported_modules(file.read_text())} - seen
        except ImportError as error:
            raise ImportError(f"{file}: {error}") from None
        seen |= found
        pending += found
    return files


def imported_modules(source: str) -> set[str]:
    """Return the modules that a source may import: of `from a import b` both `a` and `a.b`, for `b` may be a module.

    Raises `ImportError` for relative imports and for `import_module` and `__import__`, which cannot be followed.
    """
    found: set[str] = set()
    end = 0
    # Parsing every file would take ten times as long, and a worker waits for it when it starts.
    while (at := source.find("import", end)) >= 0:
        line = source.rfind("\n", 0, at) + 1
        plain = _PLAIN_IMPORT.match(source, line) if line >= end else None
        if plain is None:
            end = at + len("import")
            if _IMPORT.match(source, at):
                found.update(_parsed_imports(source))
                break
        elif package := plain["package"]:
            end = plain.end()
            names = re.sub(r"#.*", "", plain["names"])
            found.update((package, *(f"{package}.{name}" for name in _NAME.findall(names))))
        else:
            end = plain.end()
            found.update(_NAME.findall(plain["modules"]))
    # What an entry point registers is data of the model's configuration, and `GraphPlan.describe` has all of it.
    if any(f"{name}.".startswith("importlib.") and not f"{name}.".startswith(_METADATA) for name in found):
        raise ImportError("`importlib` may import any module; write import statements for what a graph is made of")
    return found


def _parsed_imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=0, module=str(package), names=names):
                yield from (package, *(f"{package}.{alias.name}" for alias in names))
            case ast.ImportFrom():
                raise ImportError(f"line {node.lineno} has a relative import; import by the whole name")
            case ast.Name(id="__import__"):
                raise ImportError(f"line {node.lineno} has `__import__`; use an import statement")


def _file_of(module: str, root: Path) -> Path | None:
    """Return None for what is no module of ours: a library, or a name inside a module."""
    path = root.joinpath(*module.split("."))
    found = (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())
    return next(found, None) if module else None
