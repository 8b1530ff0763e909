"""The name of a model on the hub."""

import re
from dataclasses import dataclass

MAX_REPO = 96
"""Characters of a repository's name, as the hub limits it."""
MAX_REVISION = 255
_REPO = re.compile(r"(?!.*(?:--|\.\.|\.git\Z))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)
"""As huggingface_hub has it, which names a folder `models--ORG--NAME`."""
_QUANTIZATION = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]*", re.ASCII)
_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.ASCII)
"""Prefix that Ollama writes before an id, and browsers before the path of a page."""


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository, such as `ORG/NAME`, and a revision of it; of a repository with GGUF files, one of them."""

    repo: str
    revision: str = ""
    """A branch, a tag or a commit; empty: the branch `main`."""
    quantization: str = ""
    """The quantization of a GGUF file, a part of its name such as `Q4_K_M`."""

    def __str__(self) -> str:
        name = f"{self.repo}:{self.quantization}" if self.quantization else self.repo
        return f"{name}@{self.revision}" if self.revision else name

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """Return the id that `ORG/NAME`, `ORG/NAME@REVISION` or, as in llama.cpp and Ollama, `ORG/NAME:QUANTIZATION`
        is, also with `hf.co/` or the hub's URL before it; None for anything else, such as a path."""
        if hub := _HUB.match(text):
            text = text[hub.end() :].removesuffix("/")
        name, at, revision = text.partition("@")
        repo, colon, quantization = name.partition(":")
        if colon and _QUANTIZATION.fullmatch(quantization) is None:
            return None
        if len(repo) > MAX_REPO or _REPO.fullmatch(repo) is None:
            return None
        if at and (len(revision) > MAX_REVISION or _REVISION.fullmatch(revision) is None or ".." in revision):
            return None
        return cls(repo, revision, quantization)


def plain_name(text: str) -> str:
    """Return a hub id without the hub's address, and any other text as it is."""
    return str(HubId.parse(text) or text)


def not_hub_id(text: str, subject: str = "") -> str:
    """Return the sentence of an error about a text that is no hub id: what it would look like. `subject` stands for the
    text, which is by default quoted."""
    problem = f"{subject or repr(text)} is not a hub id like ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M"
    return problem if "/" in text else f"{problem}; names of Ollama's library are not known here"
