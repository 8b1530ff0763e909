"""The name of a model on the hub."""

import re
from dataclasses import dataclass

MAX_REPO = 96
"""Characters of a repository's name, as the hub limits it."""
MAX_REVISION = 255
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository, such as `ORG/NAME`, and a revision of it."""

    repo: str
    revision: str = ""
    """A branch, a tag or a commit; empty: the branch `main`."""

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """Return the id that `ORG/NAME` or `ORG/NAME@REVISION` is; None for anything else, such as a path."""
        repo, at, revision = text.partition("@")
        if len(repo) > MAX_REPO or _REPO.fullmatch(repo) is None or ".." in repo:
            return None
        if at and (len(revision) > MAX_REVISION or _REVISION.fullmatch(revision) is None or ".." in revision):
            return None
        return cls(repo, revision)
