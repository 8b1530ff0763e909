"""Tokenizer of a checkpoint in Hugging Face layout, or of a GGUF file."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from workers.checkpoints.bert_normalizer import with_bert_normalizer, with_lower_case
from workers.checkpoints.documents import document_file, find_document, read_document
from workers.checkpoints.eos_ids import read_eos_ids
from workers.checkpoints.json_files import MAX_TABLE_BYTES, CheckpointError, read_text
from workers.text.infill import find_infill
from workers.text.template import MAX_TEMPLATE_CHARS, ChatTemplate, TemplateError
from workers.text.text_encoder import TextEncoder
from workers.text.token_bytes import DecoderRefused, TokenBytes
from workers.text.tokenizer import InfillFormat, decode
from workers.text.vocabulary_gaps import with_stated_ids

POOLED_FILE = "sentence_bert_config.json"
"""The file of sentence-transformers with what comes before the model."""
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that templates may refer to, as in transformers' `special_tokens_map`."""
MAX_TEMPLATE_BYTES = 4 * MAX_TEMPLATE_CHARS
"""Bytes of the longest template in UTF-8."""


class CheckpointTokenizer:
    """Encodes with the `tokenizers` library, decodes with the bytes of each token, and has the model's chat template.

    Reads tokenizer.json; tokenizer_config.json and special_tokens_map.json for special tokens and the chat template;
    chat_template.jinja; generation_config.json and config.json for end-of-sequence ids. All but the first are optional.
    Of a GGUF file, what its metadata says.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        token_bytes: TokenBytes,
        *,
        eos_ids: frozenset[int] = frozenset(),
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        response_template: Any = None,
        parse_special: bool = False,
    ) -> None:
        """With `parse_special`, control tokens in the text of messages are control tokens.

        Raises `TemplateError` for a chat template that does not compile.
        """
        self.vocab_size, self.longest_token = encoder.vocab_size, encoder.longest_token
        self.added_tokens: Mapping[str, int] = encoder.added_tokens
        self._encoder = encoder
        self._token_bytes = token_bytes
        self._parse_special = parse_special
        self.eos_ids = eos_ids
        self.chat_template = (chat_templates or {}).get("default")
        self.template_text = "\n".join((chat_templates or {}).values())
        self.response_template = response_template
        self.chat = ChatTemplate(chat_templates, special_tokens or {}) if chat_templates else None
        self.infill: InfillFormat | None = find_infill(self)

    @classmethod
    def from_dir(cls, path: Path, *, parse_special: bool = False) -> "CheckpointTokenizer":
        """Load a tokenizer. Raises `CheckpointError`, with file and field, for what is missing, malformed or
        unsupported."""
        file = document_file(path, "tokenizer.json")
        config_file = document_file(path, "tokenizer_config.json")
        config = find_document(path, "tokenizer_config.json") or {}
        family = (find_document(path, "config.json") or {}).get("model_type")
        stated = read_document(path, "tokenizer.json", MAX_TABLE_BYTES)
        description = with_bert_normalizer(stated, config_file, config, family)
        pooled = find_document(path, POOLED_FILE) or {}
        description = with_lower_case(description, document_file(path, POOLED_FILE), pooled)
        try:
            library = tokenizers.Tokenizer.from_str(json.dumps(with_stated_ids(file, description)))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(file, "", f"is not a tokenizer: {error}") from error
        library.no_truncation()
        library.no_padding()
        encoder = TextEncoder(library)
        silent = frozenset(t.content for t in library.get_added_tokens_decoder().values() if t.special)
        try:
            token_bytes = TokenBytes(description.get("decoder"), encoder.token_of, silent)
        except DecoderRefused as error:
            raise CheckpointError(file, "decoder", str(error)) from error
        special_tokens = _special_tokens(path, config)
        try:
            return cls(
                encoder,
                token_bytes,
                eos_ids=_eos_ids(path, library, special_tokens),
                special_tokens=special_tokens,
                chat_templates=_chat_templates(path, config),
                response_template=config.get("response_template"),
                parse_special=parse_special,
            )
        except TemplateError as error:
            raise CheckpointError(config_file, "chat_template", str(error)) from error

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; `special` runs the tokenizer's own post-processor, which adds BOS if the model expects
        it."""
        return self._encoder.encode(text, special=special)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """See `Tokenizer.encode_pair`. The tokenizer's own post-processor adds the tokens, and numbers the segments."""
        return self._encoder.encode_pair(first, second)

    def encode_short(self, text: str) -> list[int]:
        """See `Tokenizer.encode_short`."""
        return self._encoder.encode_short(text)

    def mark_control_tokens(self, values: Any) -> tuple[Any, str]:
        """See `Tokenizer.mark_control_tokens`."""
        return (values, "") if self._parse_special else self._encoder.mark(values)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """See `Tokenizer.encode_marked`."""
        return self._encoder.encode_marked(text, mark)

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """See `Tokenizer.piece`."""
        return self._token_bytes.piece(token, first=first)

    def label(self, token: int) -> bytes:
        """See `Tokenizer.label`."""
        return self._token_bytes.piece(token) or (self._encoder.token_of(token) or "").encode("utf-8", "replace")

    def decode(self, tokens: Iterable[int]) -> str:
        """See `Tokenizer.decode`."""
        return decode(self, tokens)


def _special_tokens(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Read special tokens from tokenizer_config.json, and from the separate file of older checkpoints."""
    named = {**(find_document(path, "special_tokens_map.json") or {}), **config}
    found = {}
    for name in SPECIAL_NAMES:
        value = named.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Read templates by name. chat_template.jinja takes precedence over tokenizer_config.json, which holds one template
    or a list of named ones."""
    file = path / "chat_template.jinja"
    if file.exists():
        return {"default": read_text(file, MAX_TEMPLATE_BYTES)}
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = {str(entry["name"]): entry["template"] for entry in value}
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            path / "tokenizer_config.json", "chat_template", "is neither a string nor a list of named templates"
        ) from error
    if "default" not in named or not all(isinstance(template, str) for template in named.values()):
        raise CheckpointError(path / "tokenizer_config.json", "chat_template", "has no template named 'default'")
    return named


def _eos_ids(path: Path, library: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> frozenset[int]:
    """Collect the end-of-sequence ids of the configs and of the tokenizer."""
    token = special_tokens.get("eos_token")
    ident = library.token_to_id(token) if token is not None else None
    return read_eos_ids(path) | (frozenset() if ident is None else {ident})
