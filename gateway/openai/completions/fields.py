"""Fields of completions that chats do not have: the prompt and the text after the answer, `echo` and `best_of`."""

from collections.abc import Sequence
from typing import Any

from gateway.errors import invalid
from gateway.openai.completions.embedded_prompts import embedded_prompt
from gateway.openai.schema import ChatBody, CompletionBody
from protocol.request import InfillInput, Input, TextInput, TokensInput


def completion_inputs(body: CompletionBody) -> list[Input]:
    """Return the inputs of a completion. With a `suffix` the answer fills the gap between both. Raises
    `RequestError`."""
    if body.prompt_embeds is not None:
        return [_embedded_input(body, body.prompt_embeds)]
    if body.prompt is None:
        raise invalid("prompt", "`prompt` is required")
    prompts = prompt_inputs(body.prompt, "prompt")
    if not body.suffix:
        return prompts
    if body.echo:
        raise invalid(
            "suffix", "`suffix` and `echo` exclude each other: the answer is between the prompt and the suffix"
        )
    texts = [prompt.text for prompt in prompts if isinstance(prompt, TextInput)]
    if len(texts) < len(prompts):
        raise invalid(
            "suffix", "`suffix` goes with a `prompt` of text only; put the model's own tokens around token ids"
        )
    return [InfillInput(text, body.suffix) for text in texts]


def _embedded_input(body: CompletionBody, embeddings: str) -> Input:
    """Return the input of a completion whose prompt are embeddings. Raises `RequestError`."""
    others = {"prompt": body.prompt, "suffix": body.suffix, "echo": body.echo, "prompt_logprobs": body.prompt_logprobs}
    for name, value in others.items():
        if value is not None and value is not False and value != "":
            raise invalid(name, f"`{name}` and `prompt_embeds` exclude each other: rows of embeddings have no text")
    return embedded_prompt(embeddings)


def prompt_inputs(prompt: Any, field: str) -> list[Input]:
    """Return the inputs of a prompt: a string, strings, token ids or lists of token ids, but no mixture. Raises
    `RequestError` naming `field`."""
    if isinstance(prompt, str):
        return [TextInput(prompt)]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise invalid(field, f"`{field}` mixes strings, token ids and lists; it must be one of them")
    kind = kinds.pop()
    if kind is str:
        return [TextInput(item) for item in prompt]
    if kind is int:
        return [TokensInput(prompt)]
    return [TokensInput(item) for item in prompt]


def best_of(body: CompletionBody | ChatBody) -> int:
    """Return the number of sequences of each prompt, of which the best `n` are choices. Raises `RequestError`."""
    n = body.n or 1
    if isinstance(body, ChatBody) or body.best_of is None:
        return n
    if body.best_of < n:
        raise invalid(
            "best_of", f"`best_of` is {body.best_of}, and `n` is {n}: there are fewer candidates than choices"
        )
    if body.best_of > n and body.stream:
        raise invalid("best_of", "the best candidates are known at the end: `best_of` over `n` cannot be streamed")
    return body.best_of


def prompt_logprobs(body: CompletionBody | ChatBody, inputs: Sequence[Input], top: int | None) -> int | None:
    """Return the number of most likely tokens to report with each token of the prompts; None reports none. `top` is the
    number for the answer. Raises `RequestError`."""
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "`prompt_logprobs` cannot be streamed; completions can stream `echo`")
    asked = [] if body.prompt_logprobs is None else [body.prompt_logprobs]
    if isinstance(body, CompletionBody) and body.echo:
        if top is not None:
            asked.append(top)
        elif any(isinstance(each, TokensInput) for each in inputs):
            asked.append(0)  # the text of token ids is in their reports
    return max(asked, default=None)


def prompt_field(body: CompletionBody | ChatBody, top: int | None) -> str:
    """The field that asks for the log-probabilities of the prompts, or could."""
    if body.prompt_logprobs is not None or isinstance(body, ChatBody) or not body.echo:
        return "prompt_logprobs"
    return "echo" if top is None else "logprobs"
