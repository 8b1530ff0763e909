"""`/tokenize` and `/detokenize` as vLLM has them, and llama.cpp's `/apply-template`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.errors import invalid
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.unsupported_options import NeutralValues, refuse_options
from gateway.http.json_body import decode_body
from gateway.images.sources import GivenImages
from gateway.openai.chat.tool_schema import ChatTools
from gateway.openai.decoding import HINTS, chat_input
from gateway.openai.field_names import CONTENT, QUERY
from gateway.openai.schema import ChatBody, ChatMessage, TemplateKwargs
from gateway.streaming.dialect import DecodedQuery, DecodeQuery
from protocol.bounds import MAX_MESSAGES, MAX_TOKENS, Name, Text, TokenId
from protocol.events import Tokenized
from protocol.request import Input, TextInput, TokensInput

OF_CHATS: NeutralValues = {
    "add_generation_prompt": (True,),
    "add_special": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "continue_final_message": (False,),
    "mm_processor_kwargs": (),
    "parse_special": (True,),
    "return_token_strs": (False,),
    "with_pieces": (False,),
}
"""The values of options that change nothing for messages, besides `null`."""
OF_PROMPTS: NeutralValues = {
    name: values for name, values in OF_CHATS.items() if not name.startswith("add_special")
} | {
    "chat_template_kwargs": (),
    "tools": (),
}
"""Those for a prompt."""
Chat = Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ApplyTemplateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /apply-template`. Without a `model`, the only one that is served."""

    messages: Chat
    model: Name | None = None
    tools: Any = None
    chat_template_kwargs: TemplateKwargs | None = None
    # Refused when they would change something.
    add_generation_prompt: Any = None
    chat_template: Any = None
    continue_final_message: Any = None


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /tokenize`, of a `prompt`, of `messages`, or of `content`, which is llama.cpp's name of a prompt. Without a
    `model`, the only one that is served."""

    model: Name | None = None
    prompt: Text | None = None
    content: Text | None = None
    add_special: bool | None = None
    messages: Chat | None = None
    tools: Any = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_special_tokens: bool | None = None
    # Refused when they would change something.
    add_generation_prompt: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    mm_processor_kwargs: Any = None
    parse_special: Any = None
    return_token_strs: Any = None
    with_pieces: Any = None


class _Tools(Struct):
    """The tools of messages. Those of a prompt are refused, whatever they are."""

    tools: ChatTools | None


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /detokenize`. Without a `model`, the only one that is served."""

    tokens: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_TOKENS)]
    model: Name | None = None


class TokenizeAnswer(Struct, forbid_unknown_fields=True):
    """The tokens of a prompt."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: None


class PromptAnswer(Struct, forbid_unknown_fields=True):
    """The text of a prompt."""

    prompt: str


class DetokenizeAnswer(PromptAnswer, forbid_unknown_fields=True):
    """The text of tokens, under vLLM's name and under llama.cpp's."""

    content: str


class PromptQueryDecoder:
    """Decodes the bodies of the three endpoints. Every refusal is a `RequestError` that names its field."""

    def __init__(self) -> None:
        self._tools = msgspec.json.Decoder(_Tools)
        self._tokenize = msgspec.json.Decoder(TokenizeBody)
        self._detokenize = msgspec.json.Decoder(DetokenizeBody)
        self._apply_template = msgspec.json.Decoder(ApplyTemplateBody)

    def paths(self) -> dict[str, DecodeQuery]:
        """The three endpoints."""
        return {
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.apply_template,
        }

    def tokenize(self, raw: bytes) -> DecodedQuery:
        """Decode a body of `/tokenize`."""
        body = decode_body(self._tokenize, raw, HINTS)
        model = body.model or ""
        if [body.prompt, body.content, body.messages].count(None) != 2:
            raise invalid("prompt", "`prompt`, `content` or `messages` is required, and only one of them")
        text = body.prompt if body.content is None else body.content
        if text is not None:
            refuse_options(body, OF_PROMPTS, OF_PROMPTS)
            special = _adds_special(body)
            names = QUERY if body.content is None else CONTENT
            return DecodedQuery(PromptQuery(model, TextInput(text), "tokens", special, names), _tokens)
        images = GivenImages()
        chat = self._chat(model, body, images)
        return DecodedQuery(PromptQuery(model, chat, "tokens", fields=QUERY), _tokens, images.found)

    def detokenize(self, raw: bytes) -> DecodedQuery:
        """Decode a body of `/detokenize`."""
        body = decode_body(self._detokenize, raw, HINTS)
        return DecodedQuery(PromptQuery(body.model or "", TokensInput(body.tokens), "text", fields=QUERY), _detokenized)

    def apply_template(self, raw: bytes) -> DecodedQuery:
        """Decode a body of `/apply-template`."""
        body = decode_body(self._apply_template, raw, HINTS)
        model = body.model or ""
        images = GivenImages()
        chat = self._chat(model, body, images)
        return DecodedQuery(PromptQuery(model, chat, "text", fields=QUERY), _text, images.found)

    def _chat(self, model: str, body: TokenizeBody | ApplyTemplateBody, images: GivenImages) -> Input:
        """The messages as a chat completion has them. Their images are added to `images`."""
        names = [name for name in OF_CHATS if name in body.__struct_fields__]
        refuse_options(body, names, OF_CHATS)
        assert body.messages is not None
        tools = msgspec.json.encode({"tools": body.tools})
        chat = ChatBody(
            model=model,
            messages=body.messages,
            tools=decode_body(self._tools, tools, HINTS).tools,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return chat_input(chat, images)


def _adds_special(body: TokenizeBody) -> bool:
    """The tokens that the model expects around a text are added: by default to a prompt, as in vLLM, and not to
    `content`, as in llama.cpp. Each has its own field. Raises `RequestError` for that of the other."""
    names = ("add_special_tokens", "add_special")
    own, other = names if body.content is None else reversed(names)
    if getattr(body, other) is not None:
        raise invalid(other, f"`{other}` is not the name here; send `{own}`")
    given: bool | None = getattr(body, own)
    return body.content is None if given is None else given


def _tokens(answer: Tokenized, context: int | None) -> bytes:
    return msgspec.json.encode(TokenizeAnswer(answer.count, context, list(answer.tokens), None))


def _text(answer: Tokenized, _: int | None) -> bytes:
    return msgspec.json.encode(PromptAnswer(answer.text))


def _detokenized(answer: Tokenized, _: int | None) -> bytes:
    return msgspec.json.encode(DetokenizeAnswer(answer.text, answer.text))
