"""Answers queries for the tokens or the text of a prompt."""

import structlog

from protocol.bounds import MAX_TEXT, MAX_TOKENS, clip
from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.process.prompts.refusal import PromptRefused

_log = structlog.get_logger()


def answer_query(builder: PromptBuilder, asked: Tokenize) -> Tokenized:
    """Return the answer, whatever happens: a bug in text code, or a panic of Rust code, must end this query only."""
    try:
        return _answer(builder, asked)
    except PromptRefused as refused:
        return failed_query(asked, refused.code, str(refused), refused.field)
    except BaseException as error:  # noqa: BLE001  see above; nothing is awaited here, so no cancellation is swallowed
        _log.error("query_failed", request=asked.request, query=asked.query, exc_info=error)
        return failed_query(asked, ErrorCode.INTERNAL, f"the prompt failed: {type(error).__name__}")


def failed_query(asked: Tokenize, code: ErrorCode, text: str, field: str = "") -> Tokenized:
    """The answer to a query that failed."""
    return Tokenized(asked.query, text=clip(text), code=code, field=field)


def _answer(builder: PromptBuilder, asked: Tokenize) -> Tokenized:
    if asked.want == "text":
        text = builder.text(asked.input)
        if len(text) > MAX_TEXT:
            raise PromptRefused(ErrorCode.CONTEXT, f"the text has {len(text)} characters; {MAX_TEXT} are sent", "")
        return Tokenized(asked.query, text=text)
    tokens = builder.tokens(asked.input, special=asked.special)
    if len(tokens) > MAX_TOKENS:
        raise PromptRefused(ErrorCode.CONTEXT, f"the prompt has {len(tokens)} tokens; {MAX_TOKENS} are counted", "")
    return Tokenized(asked.query, len(tokens), tokens if asked.want == "tokens" else ())
