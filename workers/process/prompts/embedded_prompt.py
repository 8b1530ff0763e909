"""Prompts of token ids and rows of embeddings, as the engine gets them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.request import EMBEDDING_BYTES, EmbeddedInput, EmbeddingRows, TokensInput
from workers.engine.embeddings.prompt_embeddings import InvalidEmbeddings, PromptEmbeddings
from workers.engine.request import EMBEDDINGS
from workers.process.prompts.refusal import PromptRefused


def embedded_prompt(source: EmbeddedInput, context: int) -> tuple[tuple[int, ...], PromptEmbeddings | None]:
    """Return the tokens of a prompt, with numbers that stand for its rows, and the rows; None if it has none.

    Raises `PromptRefused` for more of both than `context`, before any row is read, for bytes that are not whole rows,
    rows of different widths, and numbers that are not finite.
    """
    if source.count > context:
        text = f"prompt of {source.count} tokens leaves no room for an answer in a context of {context}"
        raise PromptRefused(ErrorCode.CONTEXT, text, EMBEDDINGS)
    parts = [segment for segment in source.segments if isinstance(segment, EmbeddingRows)]
    if len({part.width for part in parts}) > 1:
        raise _unusable("the rows have different numbers of values: all have the hidden size of the model")
    embeddings = None
    if parts:
        try:
            embeddings = PromptEmbeddings(np.concatenate([decoded_rows(part) for part in parts]))
        except InvalidEmbeddings as error:
            raise _unusable(str(error)) from None
    ids = iter(() if embeddings is None else embeddings.ids)
    tokens: list[int] = []
    for segment in source.segments:
        tokens += segment.tokens if isinstance(segment, TokensInput) else [next(ids) for _ in range(segment.count)]
    return tuple(tokens), embeddings


def decoded_rows(part: EmbeddingRows) -> NDArray[np.float32]:
    """Return float32 [count, width], with the same values. Raises `PromptRefused` for bytes that are not whole rows."""
    if len(part.data) % (part.width * EMBEDDING_BYTES[part.dtype]):
        raise _unusable(f"{len(part.data)} bytes are not whole rows of {part.width} numbers of {part.dtype}")
    values: NDArray[np.float32]
    match part.dtype:
        case "bfloat16":  # the upper half of a float32
            values = (np.frombuffer(part.data, "<u2").astype(np.uint32) << 16).view(np.float32)
        case "float16":
            values = np.frombuffer(part.data, "<f2").astype(np.float32)
        case "float32":
            values = np.frombuffer(part.data, "<f4").astype(np.float32)
    return values.reshape(-1, part.width)


def encoded_rows(rows: NDArray[np.floating]) -> EmbeddingRows:
    """Return rows [count, width] for a prompt. Raises `InvalidEmbeddings` unless they are float32 or float16."""
    if rows.ndim != 2 or not rows.size or rows.dtype not in (np.float32, np.float16):
        raise InvalidEmbeddings(f"rows must be float32 or float16 [count, width], not {rows.dtype} {list(rows.shape)}")
    if rows.dtype == np.float16:
        return EmbeddingRows("float16", rows.shape[1], rows.astype("<f2").tobytes())
    return EmbeddingRows("float32", rows.shape[1], rows.astype("<f4").tobytes())


def last_tokens(prompt: Sequence[int]) -> Sequence[int]:
    """Return the tokens after the last row of embeddings."""
    last = next((at for at in reversed(range(len(prompt))) if prompt[at] < 0), -1)
    return prompt[last + 1 :]


def _unusable(text: str) -> PromptRefused:
    return PromptRefused(ErrorCode.INVALID, text, EMBEDDINGS)
