"""The files of Hugging Face's layout that a GGUF file stands for."""

from collections.abc import Callable, Mapping
from typing import Any

from workers.checkpoints.gguf.architectures import config_fields
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.tokenizers import tokenizer_json
from workers.checkpoints.gguf.vocabulary import ROLES, GgufVocabulary

TEMPLATE = "tokenizer.chat_template"
SAMPLING: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Fields of generation_config.json by the keys that llama.cpp's converter writes them to."""
Document = dict[str, Any]


def document(model: GgufFile, name: str) -> Document | None:
    """Return the contents of a JSON file of a checkpoint; None for one that it does not have. Raises
    `CheckpointError`."""
    make = DOCUMENTS.get(name)
    return None if make is None else make(model)


def _config(model: GgufFile) -> Document:
    fields = config_fields(model)
    vocabulary = GgufVocabulary.of(model)
    if vocabulary is not None:
        fields["eos_token_id"] = vocabulary.ends()
    return fields


def _generation_config(model: GgufFile) -> Document | None:
    found = {field: model.metadata[key] for key, field in SAMPLING.items() if key in model.metadata}
    return found or None


def _tokenizer(model: GgufFile) -> Document | None:
    vocabulary = GgufVocabulary.of(model)
    return None if vocabulary is None else tokenizer_json(vocabulary)


def _tokenizer_config(model: GgufFile) -> Document | None:
    """Special tokens, and the chat templates."""
    vocabulary = GgufVocabulary.of(model)
    if vocabulary is None:
        return None
    found: Document = {}
    for role, name in ROLES.items():
        if (ident := vocabulary.role(role)) is not None:
            found[name] = vocabulary.tokens[ident]
    named = {
        key.removeprefix(f"{TEMPLATE}."): text
        for key, text in model.metadata.items()
        if key.startswith(f"{TEMPLATE}.") and isinstance(text, str)
    }
    template = model.metadata.get(TEMPLATE)
    if template is not None and not isinstance(template, str):
        raise model.error(TEMPLATE, "is not a string")
    if template is not None and named:
        texts = {"default": template, **named}
        found["chat_template"] = [{"name": name, "template": text} for name, text in texts.items()]
    elif template is not None:
        found["chat_template"] = template
    return found


DOCUMENTS: Mapping[str, Callable[[GgufFile], Document | None]] = {
    "config.json": _config,
    "generation_config.json": _generation_config,
    "tokenizer.json": _tokenizer,
    "tokenizer_config.json": _tokenizer_config,
}
