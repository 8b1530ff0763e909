"""The vocabulary in the metadata of a GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.json_files import CheckpointError

PREFIX = "tokenizer.ggml."
SPACE = "\u2581"
"""SentencePiece's character for a space."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
ROLES: Mapping[str, str] = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "seperator": "sep_token",
    "padding": "pad_token",
    "mask": "mask_token",
}
"""transformers' names of the roles of tokens; the spelling of a key is the format's."""
ENDS = ("eos", "eot", "eom")
"""The roles of tokens that end an answer."""
TOOL_RESPONSE = "<|tool_response>"
"""Gemma 4's end of a tool call, which converters mark as a token of the user's, to be shown."""
END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>"),
        *("<turn|>", TOOL_RESPONSE, "<EOT>", "_<EOT>", "<end_of_utterance>", "<|return|>", "<|call|>"),
    }
)
"""Control tokens that end an answer, whatever their role is: files state one, and models have several. The list is
llama.cpp's, as far as it concerns the architectures here."""


def _ends(token: str, kind: int) -> bool:
    return token in END_TEXTS and (kind == CONTROL or (kind == USER_DEFINED and token == TOOL_RESPONSE))


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens by id, with their types."""

    model: GgufFile
    tokens: list[str]
    types: list[int]

    @classmethod
    def of(cls, model: GgufFile) -> "GgufVocabulary | None":
        """Read the vocabulary; None for a file without one. Raises `CheckpointError`."""
        tokens = model.metadata.get(f"{PREFIX}tokens")
        if tokens is None:
            return None
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise model.error(f"{PREFIX}tokens", "is not a list of strings")
        types = model.metadata.get(f"{PREFIX}token_type", [NORMAL] * len(tokens))
        if not isinstance(types, list) or len(types) != len(tokens):
            raise model.error(f"{PREFIX}token_type", f"is not a list of the types of {len(tokens)} tokens")
        if model.metadata.get(f"{PREFIX}model") == "llama":  # converters write runs of spaces, which no text has later
            tokens = [token.replace(" ", SPACE) if token.isspace() else token for token in tokens]
        seen: dict[str, int] = {}
        for number, token in enumerate(tokens):
            if seen.setdefault(token, number) != number and token:
                raise model.error(f"{PREFIX}tokens", f"the tokens {seen[token]} and {number} are both {token[:64]!r}")
        return cls(model, tokens, types)

    def error(self, key: str, problem: str) -> CheckpointError:
        return self.model.error(PREFIX + key, problem)

    def get(self, key: str, default: Any = None) -> Any:
        return self.model.metadata.get(PREFIX + key, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false")
        return value

    def role(self, name: str) -> int | None:
        """The id of the token with a role. Raises `CheckpointError` for an id that is not in the vocabulary."""
        key = f"{name}_token_id"
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(self.tokens):
            raise self.error(key, f"{value!r} is not the id of one of {len(self.tokens)} tokens")
        return value

    def ends(self) -> list[int]:
        """Ids of the tokens that end an answer."""
        found = {ident for name in ENDS if (ident := self.role(name)) is not None}
        kinds = zip(self.tokens, self.types, strict=True)
        found |= {ident for ident, (token, kind) in enumerate(kinds) if _ends(token, kind)}
        return sorted(found)

    def used(self) -> dict[str, int]:
        """Ids by token, without the tokens that only fill up the vocabulary."""
        kinds = zip(self.tokens, self.types, strict=True)
        return {token: ident for ident, (token, kind) in enumerate(kinds) if token and kind != UNUSED}

    def added(self) -> list[dict[str, Any]]:
        """The tokens that are found in text before it is split, in the notation of tokenizer.json."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False}
        return [
            {
                "id": ident,
                "content": token,
                "normalized": kind == USER_DEFINED and SPACE in token,
                "special": kind != USER_DEFINED,
                **flags,
            }
            for ident, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token
            and (kind in (CONTROL, USER_DEFINED) or (kind == UNKNOWN and self.get("model") in ("llama", "gemma4")))
        ]

    def around(self, *, bos: bool) -> tuple[int | None, int | None]:
        """The tokens before and after a plain prompt, by the file or by default `bos`. Raises `CheckpointError` if the
        file asks for a token that it does not name."""
        found: list[int | None] = []
        for name, default in (("bos", bos), ("eos", False)):
            wanted, ident = self.flag(f"add_{name}_token", default), self.role(name)
            if wanted and ident is None and self.get(f"add_{name}_token") is not None:
                raise self.error(f"{name}_token_id", f"is missing, and add_{name}_token is true")
            found.append(ident if wanted else None)
        return found[0], found[1]
