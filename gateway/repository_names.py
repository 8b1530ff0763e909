"""Names of repositories of the hub, as settings and requests have them."""

from protocol.hub_id import HubId

ANY = "*"


def repository_of(text: str) -> str | None:
    """Return the repository of a hub id like `ORG/NAME` or `ORG/NAME@REVISION`; None for anything else."""
    named = HubId.parse(text)
    return None if named is None or named.quantization else named.repo


def check_repository(pattern: str) -> None:
    """Raise `ValueError` for what is neither `ORG/NAME`, `ORG/*` nor `*`."""
    name = f"{pattern[:-1]}x" if pattern.endswith("/*") else pattern
    if pattern != ANY and repository_of(name) != name:
        raise ValueError(f"{pattern[:200]!r} is not ORG/NAME, ORG/* or *")


def is_allowed(repository: str, pattern: str) -> bool:
    """True for a repository that a pattern allows. Capitals count, as they do for folders of the hub's cache."""
    return pattern in (ANY, repository) or (pattern.endswith("/*") and repository.startswith(pattern[:-1]))
