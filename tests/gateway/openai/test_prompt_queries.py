"""`/tokenize`, `/detokenize` and `/apply-template`."""

from typing import Any

import pytest
from msgspec import Struct

from gateway.anthropic.schema import InputMessage, TextBlock
from gateway.ollama.schema import OllamaMessage
from gateway.openai.schema import ChatMessage, TextPart
from gateway.responses.items.input_schema import ItemPart
from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from protocol.request import ChatInput, Message, TemplateOptions, TextInput, TokensInput
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.real import launch, real_gateway
from tests.gateway.harness.transcripts import Site, site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def asked(made: Site, path: str, body: dict[str, Any], answer: Tokenized) -> tuple[Tokenize, Connection]:
    """The query that the worker got, and the response after its answer."""
    connection = made.post(path, body)
    (query,) = await made.worker.wait_queries(1)
    made.worker.say(Tokenized(query.query, answer.count, answer.tokens, answer.text, answer.code, answer.field))
    await connection.ended.wait()
    return query, connection


@pytest.mark.parametrize(("given", "special"), [(None, True), (True, True), (False, False)])
async def test_a_prompt_is_tokenized(given: bool | None, special: bool) -> None:
    body = {"model": "tiny", "prompt": "hi", "add_special_tokens": given}
    async with site() as made:
        query, connection = await asked(made, "/tokenize", body, Tokenized(0, 2, (104, 105)))
    assert (query.input, query.want, query.special) == (TextInput("hi"), "tokens", special)
    assert connection.body == b'{"count":2,"max_model_len":128,"tokens":[104,105],"token_strs":null}'


@pytest.mark.parametrize(("given", "special"), [(None, False), (True, True), (False, False)])
async def test_content_is_tokenized_as_by_llama_cpp(given: bool | None, special: bool) -> None:
    body = {"content": "hi", "add_special": given, "with_pieces": False, "parse_special": True}
    async with site() as made:
        query, connection = await asked(made, "/tokenize", body, Tokenized(0, 2, (104, 105)))
    assert (query.input, query.want, query.special) == (TextInput("hi"), "tokens", special)
    assert connection.status == 200


async def test_messages_are_tokenized_by_the_only_model() -> None:
    body = {"messages": CHAT, "add_generation_prompt": True, "chat_template_kwargs": {"enable_thinking": False}}
    async with site() as made:
        query, connection = await asked(made, "/tokenize", body, Tokenized(0, 1, (7,)))
    assert isinstance(query.input, ChatInput)
    assert query.input.messages == (Message("user", "hi"),)
    assert query.input.options == TemplateOptions(enable_thinking=False)
    assert (query.want, connection.status) == ("tokens", 200)


async def test_tokens_become_text() -> None:
    async with site() as made:
        query, connection = await asked(made, "/detokenize", {"tokens": [104, 105]}, Tokenized(0, text="hi"))
    assert (query.input, query.want) == (TokensInput((104, 105)), "text")
    assert connection.body == b'{"prompt":"hi","content":"hi"}'


async def test_messages_are_rendered() -> None:
    async with site() as made:
        query, connection = await asked(made, "/apply-template", {"messages": CHAT}, Tokenized(0, text="<user>hi"))
    assert isinstance(query.input, ChatInput)
    assert (query.want, connection.body) == ("text", b'{"prompt":"<user>hi"}')


async def test_a_refusal_of_the_worker_is_that_of_the_request() -> None:
    failed = Tokenized(0, text="token 9 is not in the vocabulary", code=ErrorCode.INVALID, field="tokens")
    async with site() as made:
        _, connection = await asked(made, "/detokenize", {"tokens": [9]}, failed)
    assert connection.status == 400
    assert (connection.error["param"], connection.error["code"]) == ("tokens", "invalid_request")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": CHAT}, "prompt"),
    ("/tokenize", {"prompt": "x", "return_token_strs": True}, "return_token_strs"),
    ("/tokenize", {"prompt": "x", "tools": [{}]}, "tools"),
    ("/tokenize", {"prompt": ["x"]}, "prompt"),
    ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"messages": CHAT, "add_generation_prompt": False}, "add_generation_prompt"),
    ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("/tokenize", {"content": "x", "prompt": "x"}, "prompt"),
    ("/tokenize", {"content": "x", "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"prompt": "x", "add_special": True}, "add_special"),
    ("/tokenize", {"messages": CHAT, "add_special": True}, "add_special"),
    ("/tokenize", {"content": "x", "with_pieces": True}, "with_pieces"),
    ("/detokenize", {"tokens": "x"}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ("/apply-template", {"messages": CHAT, "chat_template": "x"}, "chat_template"),
    ("/apply-template", {"messages": []}, "messages"),
]


@pytest.mark.parametrize(("path", "body", "at"), REFUSED)
async def test_a_body_that_is_refused(path: str, body: dict[str, Any], at: str) -> None:
    async with site() as made:
        answer = await made.clients.ask("POST", path, body)
    assert (answer.status, answer.error["param"]) == (400, at)


async def test_a_model_is_named_where_there_are_several() -> None:
    async with site() as made:
        FakeWorker("b", model="other").join(made.router)
        unnamed = await made.clients.ask("POST", "/tokenize", {"prompt": "x"})
        unknown = await made.clients.ask("POST", "/tokenize", {"prompt": "x", "model": "huge"})
    assert (unnamed.status, unnamed.error["param"]) == (400, "model")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


class TestRealWorkers:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_tokens_become_the_text_again(self) -> None:
        text = "h\u00e9 <|im_end|>"
        async with real_gateway(launch("w0")) as real:
            tokens = (await real.client.post("/tokenize", json={"prompt": text})).json()
            back = (await real.client.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
            prompt = (await real.client.post("/apply-template", json={"messages": CHAT})).json()
            chat = (await real.client.post("/tokenize", json={"messages": CHAT})).json()
        assert (tokens["count"], back) == (len(text.encode()), {"prompt": text, "content": text})
        assert prompt == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}
        assert chat["count"] == len(prompt["prompt"])


@pytest.mark.parametrize(
    "kind", [TextPart, ChatMessage, TextBlock, InputMessage, ItemPart, OllamaMessage], ids=lambda kind: kind.__name__
)
def test_the_parts_of_a_body_cause_no_garbage_collections(kind: type[Struct]) -> None:
    """Before: 32,000 parts, of which none can refer to itself, were looked through again and again: 41 ms in one turn
    of the event loop instead of 16."""
    assert not kind.__struct_config__.gc
