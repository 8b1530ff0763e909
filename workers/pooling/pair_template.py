"""Prompts of decoders that score pairs of texts: a chat template with the roles `query` and `document`, or a fixed
text.

Such chat templates are those of sentence-transformers' `CrossEncoder` and of vLLM; the fixed text is that of
Qwen3-Reranker's model card.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workers.text.tokenizer import Tokenizer

ROLES = tuple(re.compile(f"['\"]{role}['\"]") for role in ("query", "document"))
"""The names of the roles, as a chat template writes them."""
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: ',
    "\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
"""The texts before, between and after instruction, query and document."""
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Writes a pair of texts as one prompt."""

    parts: tuple[str, str, str, str] | None = None
    """The texts around instruction, query and document; None for the model's chat template."""
    instruction: str = ""
    """That of a request without one; empty leaves it to the chat template."""

    def encode(
        self, tokenizer: Tokenizer, query: str, document: str, instruction: str, most: int | None
    ) -> Sequence[int]:
        """Return the tokens of a pair. Control tokens in the texts are ordinary text. Of a pair with more than `most`
        tokens the ends of the texts are left out, of the longer one first; the result has more only if nothing is left
        of both. Raises `workers.text.template.TemplateError`."""
        texts = [query, document]
        tokens = self._encoded(tokenizer, texts, instruction)
        if most is None or len(tokens) <= most:
            return tokens
        marked, mark = tokenizer.mark_control_tokens(texts)
        own = [_plain(tokenizer, text, mark) for text in marked]
        kept = [len(each) for each in own]
        while len(tokens) > most and any(kept):
            kept = _shorter(kept, len(tokens) - most)
            pairs = zip((query, document), own, kept, strict=True)
            texts = [text if count == len(ids) else _beginning(tokenizer, ids, count) for text, ids, count in pairs]
            tokens = self._encoded(tokenizer, texts, instruction)
        return tokens

    def _encoded(self, tokenizer: Tokenizer, texts: Sequence[str], instruction: str) -> Sequence[int]:
        values = [instruction or self.instruction, *texts]
        (instruction, query, document), mark = tokenizer.mark_control_tokens(values)
        if self.parts is not None:
            before, middle, between, end = self.parts
            text = f"{before}{instruction}{middle}{query}{between}{document}{end}"
        else:
            assert tokenizer.chat is not None, "checked when the model was loaded"
            messages = [{"role": "system", "content": instruction}] if instruction else []
            pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            text = tokenizer.chat.render([*messages, *pair])
        return _plain(tokenizer, text, mark)


def _plain(tokenizer: Tokenizer, text: str, mark: str) -> Sequence[int]:
    """Return the tokens of a text, in which control tokens with a mark are ordinary text."""
    return tokenizer.encode_marked(text, mark) if mark else tokenizer.encode(text, special=False)


def has_pair_roles(template: str | None) -> bool:
    """Return whether a chat template has the roles of a pair."""
    return template is not None and all(role.search(template) for role in ROLES)


def _shorter(kept: Sequence[int], excess: int) -> list[int]:
    """Return the numbers of tokens without `excess` of them, each taken from the larger one, of equal ones the
    second."""
    first, second = kept
    for _ in range(min(excess, first + second)):
        if first > second:
            first -= 1
        else:
            second -= 1
    return [first, second]


def _beginning(tokenizer: Tokenizer, tokens: Sequence[int], count: int) -> str:
    """Return the text of the first tokens, without a character of which they have a part."""
    return tokenizer.decode(tokens[:count]).rstrip("\ufffd")
