"""Names of repositories of the hub, as settings and requests have them."""

import re

ANY = "*"
MAX_REPOSITORY = 96
"""Characters of a repository's name, as the hub limits it."""
MAX_REVISION = 255
_PART = r"\w(?:[\w.-]*\w)?"
_NAMED = re.compile(rf"({_PART}/{_PART})(?:@(\w[\w./-]*))?", re.ASCII)
_ORGANIZATION = re.compile(rf"{_PART}/\*", re.ASCII)


def repository_of(text: str) -> str | None:
    """Return the repository of a hub id like `ORG/NAME` or `ORG/NAME@REVISION`; None for anything else."""
    named = _NAMED.fullmatch(text)
    if named is None or ".." in text or len(named[1]) > MAX_REPOSITORY or len(named[2] or "") > MAX_REVISION:
        return None
    return None if "--" in named[1] or named[1].endswith(".git") else named[1]


def check_repository(pattern: str) -> None:
    """Raise `ValueError` for what is neither `ORG/NAME`, `ORG/*` nor `*`."""
    named = _ORGANIZATION.fullmatch(pattern) is not None or repository_of(pattern) == pattern
    parts = ("..", "--")
    if pattern != ANY and (not named or any(map(pattern.__contains__, parts)) or len(pattern) > MAX_REPOSITORY):
        raise ValueError(f"{pattern[:200]!r} is not ORG/NAME, ORG/* or *")


def is_allowed(repository: str, pattern: str) -> bool:
    """True for a repository that a pattern allows. Capitals count, as they do for folders of the hub's cache."""
    return pattern in (ANY, repository) or (pattern.endswith("/*") and repository.startswith(pattern[:-1]))
