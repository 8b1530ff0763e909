"""Descriptions of all routes of the app."""

from collections.abc import Mapping
from typing import Any

from gateway.admin.endpoints import Leave, LeaveAll, Nothing, Reload
from gateway.admin.joining import TokenTerms
from gateway.admin.live import LIVE_PATH
from gateway.anthropic.answer_schema import MessageErrorAnswer, MessageObject, ModelInfo, ModelPage, TokenCount
from gateway.anthropic.errors import OVERLOADED_STATUS
from gateway.anthropic.schema import CountBody, MessagesBody
from gateway.errors import STATUS, RefusalCode
from gateway.ollama.answer_schema import (
    OllamaChatAnswer,
    OllamaChatLoaded,
    OllamaErrorAnswer,
    OllamaGenerateAnswer,
    OllamaGenerateLoaded,
    OllamaRunning,
    OllamaShow,
    OllamaTags,
    OllamaVersion,
)
from gateway.ollama.embeddings import (
    OllamaEmbedAnswer,
    OllamaEmbedBody,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsBody,
)
from gateway.ollama.schema import OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from gateway.openai.answer_schema import ChatCompletion, Completion, ErrorAnswer, Model, ModelList, ModelProperties
from gateway.openai.classify.schema import ClassifyBody, ClassList
from gateway.openai.embeddings.schema import EmbeddingList, EmbeddingsBody
from gateway.openai.prompt_queries import (
    ApplyTemplateBody,
    DetokenizeAnswer,
    DetokenizeBody,
    PromptAnswer,
    TokenizeAnswer,
    TokenizeBody,
)
from gateway.openai.rerank.schema import ComparisonList, RerankAnswerObject, RerankBody
from gateway.openai.schema import ChatBody, CompletionBody
from gateway.openai.scores.schema import ScoreBody, ScoreList
from gateway.openapi.answers import (
    GatewayProcess,
    Health,
    JoinTokenAnswer,
    KeysAnswer,
    KeyUses,
    KilledWorker,
    Live,
    ModelEntries,
    OperationAnswer,
    Readiness,
    TlsAnswer,
    Version,
    Workers,
)
from gateway.openapi.document import Operations
from gateway.openapi.operation import JSON, ApiOperation, Code
from gateway.responses.answer_schema import DeletedResponse, ItemList, ResponseAnswerObject
from gateway.responses.endpoints import MAX_PAGE, PAGE
from gateway.responses.request.schema import ENCRYPTED, LOGPROBS, ResponsesBody
from gateway.streaming.resume_endpoint import HEADER, PARAMETER
from protocol.errors import ErrorCode

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
_RESUMING: tuple[Code, ...] = (
    ErrorCode.INVALID,
    RefusalCode.UNKNOWN_PARAMETER,
    RefusalCode.STREAM_NOT_FOUND,
    RefusalCode.EVENTS_GONE,
    RefusalCode.STREAM_DROPPED,
    RefusalCode.STREAM_CANCELLED,
    RefusalCode.STREAM_TAKEN,
    RefusalCode.STREAM_LOST,
    RefusalCode.STREAM_ELSEWHERE,
)
_COMPUTING: tuple[Code, ...] = (*ErrorCode, RefusalCode.MODEL_NOT_FOUND, RefusalCode.RATE_LIMITED)
_GENERATING: tuple[Code, ...] = (*_COMPUTING, *_RESUMING)
_QUERYING: tuple[Code, ...] = (
    *(ErrorCode.UNSUPPORTED, ErrorCode.CONTEXT, ErrorCode.TEMPLATE, ErrorCode.OVERLOADED, ErrorCode.LOST),
    *(ErrorCode.DRAINING, ErrorCode.DEADLINE, RefusalCode.MODEL_NOT_FOUND, RefusalCode.RATE_LIMITED),
)
_CHANGING: tuple[Code, ...] = (RefusalCode.ADMIN_KEY_NEEDED,)
_WORKER: tuple[Code, ...] = (*_CHANGING, RefusalCode.WORKER_NOT_FOUND, RefusalCode.OPERATION_UNDER_WAY)
_MODEL: tuple[Code, ...] = (*_CHANGING, RefusalCode.MODEL_NOT_FOUND, RefusalCode.OPERATION_UNDER_WAY)
_LAST_EVENT: Mapping[str, Any] = {
    "name": HEADER,
    "in": "header",
    "description": "The id of the last event that the client has. With it, the stream is resumed.",
    "schema": {"type": "string"},
}
_STORED: tuple[Code, ...] = (ErrorCode.INVALID, RefusalCode.UNKNOWN_PARAMETER, RefusalCode.RESPONSE_NOT_FOUND)
_EVENT: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}


_OF_MESSAGES: Mapping[str, Any] = {
    "error": MessageErrorAnswer,
    "statuses": STATUS | {ErrorCode.OVERLOADED: OVERLOADED_STATUS},
}
_VERSION: Mapping[str, Any] = {
    "name": "anthropic-version",
    "in": "header",
    "description": "With this header the answer is in the format of Anthropic's API.",
    "schema": {"type": "string"},
}


def _in_query(name: str, description: str, **schema: Any) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_INCLUDE = _in_query(
    "include", "Has no effect: what a response has, it keeps.", type="array", items={"enum": [LOGPROBS, ENCRYPTED]}
)


def _generation(summary: str, body: Any, answer: Any, *errors: Code) -> ApiOperation:
    return ApiOperation(
        summary=summary,
        body=body,
        answers={200: {JSON: answer, SSE: None}, 204: {}},
        errors=(*_GENERATING, *errors),
        parameters=(_LAST_EVENT,),
    )


def _of_ollama(summary: str, answer: Any, body: Any = None, errors: tuple[Code, ...] = ()) -> ApiOperation:
    lines = {NDJSON: None} if errors is _GENERATING else {}
    return ApiOperation(
        summary=summary, body=body, answers={200: {JSON: answer, **lines}}, errors=errors, error=OllamaErrorAnswer
    )


def _query_of(summary: str, body: Any, answer: Any) -> ApiOperation:
    return ApiOperation(summary=summary, body=body, answers={200: {JSON: answer}}, errors=_QUERYING)


def _query(name: str) -> Mapping[str, Any]:
    description = "Of Anthropic's API: with `anthropic-version` only."
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _read(summary: str, answer: Any, *errors: Code) -> ApiOperation:
    return ApiOperation(summary=summary, answers={200: {JSON: answer}}, errors=errors)


def _change(summary: str, body: Any, errors: tuple[Code, ...], answer: Any = OperationAnswer) -> ApiOperation:
    return ApiOperation(summary=summary, body=body, body_required=False, answers={202: {JSON: answer}}, errors=errors)


def _pooled(summary: str, body: Any, answer: Any) -> ApiOperation:
    return ApiOperation(summary=summary, body=body, answers={200: {JSON: answer}}, errors=_COMPUTING)


_HEALTH = ApiOperation(
    summary="Probe whether a model can be used", answers={200: {JSON: Health}, 503: {JSON: Health}}, open=True
)
_RERANK = _pooled("Rank documents by their scores for a query", RerankBody, RerankAnswerObject)
_CLASSIFY = _pooled("Compute the probabilities of the labels of texts", ClassifyBody, ClassList)
_SCORE = _pooled(
    "Compute the log-likelihoods of texts, or the scores of pairs of texts", ScoreBody, (ScoreList, ComparisonList)
)


OPERATIONS: Operations = {
    ("POST", "/v1/chat/completions"): _generation("Continue a chat, whole or streamed", ChatBody, ChatCompletion),
    ("POST", "/v1/responses"): _generation(
        "Create a response, whole or streamed", ResponsesBody, ResponseAnswerObject, RefusalCode.RESPONSE_NOT_FOUND
    ),
    ("GET", "/v1/responses/{id}"): ApiOperation(
        summary="Retrieve a response, or read the rest of its events",
        answers={200: {JSON: ResponseAnswerObject, SSE: None}},
        errors=(*_STORED, RefusalCode.EVENTS_GONE),
        parameters=(
            _in_query("stream", "Read the events of a response in the background.", type="boolean"),
            _in_query("starting_after", "The `sequence_number` of the last event that the client has.", **_EVENT),
            _in_query("include_obfuscation", "Must be false.", type="boolean", enum=[False]),
            _INCLUDE,
        ),
    ),
    ("DELETE", "/v1/responses/{id}"): _read("Delete a response", DeletedResponse, *_STORED),
    ("POST", "/v1/responses/{id}/cancel"): _read("Cancel a response in the background", ResponseAnswerObject, *_STORED),
    ("GET", "/v1/responses/{id}/input_items"): ApiOperation(
        summary="List the input items of a response",
        answers={200: {JSON: ItemList}},
        errors=_STORED,
        parameters=(
            _in_query("limit", "Items of one page.", type="integer", minimum=1, maximum=MAX_PAGE, default=PAGE),
            _in_query("order", "The newest item first, or the oldest.", type="string", enum=["asc", "desc"]),
            _in_query("after", "The id of the item after which the page begins.", type="string", minLength=1),
            _INCLUDE,
        ),
    ),
    ("POST", "/v1/completions"): _generation("Continue a prompt, whole or streamed", CompletionBody, Completion),
    ("POST", "/v1/embeddings"): _pooled("Compute embeddings of texts", EmbeddingsBody, EmbeddingList),
    ("POST", "/v1/rerank"): _RERANK,
    ("POST", "/v2/rerank"): _RERANK,
    ("POST", "/rerank"): _RERANK,
    ("POST", "/v1/classify"): _CLASSIFY,
    ("POST", "/classify"): _CLASSIFY,
    ("POST", "/v1/score"): _SCORE,
    ("POST", "/score"): _SCORE,
    ("POST", "/tokenize"): _query_of("Tokenize a prompt or messages", TokenizeBody, TokenizeAnswer),
    ("POST", "/detokenize"): _query_of("Turn tokens into text", DetokenizeBody, DetokenizeAnswer),
    ("POST", "/apply-template"): _query_of("Render messages with the chat template", ApplyTemplateBody, PromptAnswer),
    ("GET", "/v1/streams/{id}"): ApiOperation(
        summary="Resume a stream whose connection ended",
        answers={200: {SSE: None}, 204: {}},
        errors=_RESUMING,
        parameters=(
            _LAST_EVENT,
            {
                "name": PARAMETER,
                "in": "query",
                "description": "The number of the last event that the client has.",
                "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
            },
        ),
    ),
    ("DELETE", "/v1/streams/{id}"): ApiOperation(
        summary="Cancel a stream",
        answers={204: {}},
        errors=(RefusalCode.STREAM_NOT_FOUND, RefusalCode.STREAM_LOST, ErrorCode.UNAVAILABLE),
    ),
    ("POST", "/v1/messages"): ApiOperation(
        summary="Continue a chat, whole or streamed, in the format of Anthropic's API",
        body=MessagesBody,
        answers={200: {JSON: MessageObject, SSE: None}, 204: {}},
        errors=_GENERATING,
        parameters=(_LAST_EVENT,),
        **_OF_MESSAGES,
    ),
    ("POST", "/v1/messages/count_tokens"): ApiOperation(
        summary="Count the tokens of a prompt, in the format of Anthropic's API",
        body=CountBody,
        answers={200: {JSON: TokenCount}},
        errors=_QUERYING,
        **_OF_MESSAGES,
    ),
    ("GET", "/v1/models"): ApiOperation(
        summary="List the models",
        answers={200: {JSON: (ModelList, ModelPage)}},
        errors=(ErrorCode.INVALID, RefusalCode.MODEL_NOT_FOUND),
        parameters=(_VERSION, *map(_query, ("limit", "after_id", "before_id", "lifecycle"))),
        error=(ErrorAnswer, MessageErrorAnswer),
    ),
    ("GET", "/v1/models/{id}"): ApiOperation(
        summary="Describe a model",
        answers={200: {JSON: (Model, ModelInfo)}},
        errors=(RefusalCode.MODEL_NOT_FOUND,),
        parameters=(_VERSION,),
        error=(ErrorAnswer, MessageErrorAnswer),
    ),
    ("POST", "/api/embed"): _of_ollama(
        "Compute embeddings of texts, in the format of Ollama's API", OllamaEmbedAnswer, OllamaEmbedBody, _COMPUTING
    ),
    ("POST", "/api/embeddings"): _of_ollama(
        "Compute the embedding of one text, in the older format of Ollama's API",
        OllamaEmbeddingsAnswer,
        OllamaEmbeddingsBody,
        _COMPUTING,
    ),
    ("POST", "/api/chat"): _of_ollama(
        "Continue a chat, whole or streamed, in the format of Ollama's API",
        (OllamaChatAnswer, OllamaChatLoaded),
        OllamaChatBody,
        _GENERATING,
    ),
    ("POST", "/api/generate"): _of_ollama(
        "Continue a prompt, whole or streamed, in the format of Ollama's API",
        (OllamaGenerateAnswer, OllamaGenerateLoaded),
        OllamaGenerateBody,
        _GENERATING,
    ),
    ("GET", "/api/tags"): _of_ollama("List the models, in the format of Ollama's API", OllamaTags),
    ("GET", "/api/ps"): _of_ollama("List the models that are loaded, in the format of Ollama's API", OllamaRunning),
    ("POST", "/api/show"): _of_ollama(
        "Describe a model, in the format of Ollama's API", OllamaShow, OllamaShowBody, (RefusalCode.MODEL_NOT_FOUND,)
    ),
    ("GET", "/api/version"): _of_ollama("Read the version of Ollama's API", OllamaVersion),
    **dict.fromkeys((("GET", "/health"), ("GET", "/ping"), ("GET", "/v1/health")), _HEALTH),
    ("GET", "/props"): ApiOperation(
        summary="Describe a model, in the format of llama.cpp's server",
        answers={200: {JSON: ModelProperties}},
        errors=(RefusalCode.MODEL_NOT_FOUND,),
        parameters=(_in_query("model", "Its name; by default the first.", type="string"),),
    ),
    ("GET", "/version"): _read("Read the version", Version),
    ("GET", "/health/live"): ApiOperation(summary="Probe the event loop", answers={200: {JSON: Live}}, open=True),
    ("GET", "/health/ready"): ApiOperation(
        summary="Probe whether requests are admitted",
        answers={200: {JSON: Readiness}, 503: {JSON: Readiness}},
        open=True,
    ),
    ("GET", "/metrics"): ApiOperation(summary="Read the metrics of Prometheus", answers={200: {"text/plain": None}}),
    ("GET", "/openapi.json"): ApiOperation(summary="Read this document", answers={200: {JSON: dict[str, Any]}}),
    ("GET", "/"): ApiOperation(summary="Open the page", answers={200: {"text/html": None}, 304: {}}, open=True),
    ("GET", "/page/{name}"): ApiOperation(
        summary="Read a file of the page",
        answers={200: {"text/html": None, "text/css": None, "text/javascript": None}, 304: {}},
        open=True,
    ),
    ("GET", LIVE_PATH): ApiOperation(
        summary="Watch the workers and their streams",
        answers={200: {SSE: None}},
        errors=(ErrorCode.OVERLOADED, RefusalCode.ORIGIN_NOT_ALLOWED),
    ),
    ("POST", "/admin/workers/{name}/kill"): ApiOperation(
        summary="Kill the process of a worker, to test failover",
        body=Nothing,
        body_required=False,
        answers={202: {JSON: KilledWorker}},
        errors=(*_CHANGING, RefusalCode.WORKER_NOT_FOUND, RefusalCode.NO_PROCESS),
    ),
    ("POST", "/admin/workers/{name}/token"): ApiOperation(
        summary="Make a one-time token with which a worker joins",
        body=TokenTerms,
        body_required=False,
        answers={200: {JSON: JoinTokenAnswer}},
        errors=(*_CHANGING, RefusalCode.NO_REMOTE_WORKERS),
    ),
    ("GET", "/admin/workers"): _read("List the workers", Workers),
    ("GET", "/admin/models"): _read("List the models with their state and memory", ModelEntries),
    ("POST", "/admin/models/{name}/load"): _change("Load a model", Leave, _MODEL),
    ("POST", "/admin/models/{name}/unload"): _change("Unload a model", Leave, _MODEL),
    ("POST", "/admin/models/{name}/reload"): _change("Unload a model and load it again", Leave, _MODEL),
    ("GET", "/admin/operation"): _read("Describe the latest operation", OperationAnswer),
    ("POST", "/admin/workers/{name}/drain"): _change("Drain a worker", Leave, _WORKER),
    ("POST", "/admin/workers/{name}/remove"): _change("Drain a remote worker and forget it", Leave, _WORKER),
    ("POST", "/admin/workers/{name}/restart"): _change("Restart a worker", Leave, _WORKER),
    ("POST", "/admin/restart"): ApiOperation(
        summary="Restart all workers, or those of a model",
        body=LeaveAll,
        body_required=False,
        answers={202: {JSON: OperationAnswer}},
        errors=_MODEL,
        parameters=(
            {
                "name": "rolling",
                "in": "query",
                "description": "If present, a replacement is ready before each worker leaves.",
                "schema": {"type": "string"},
                "allowEmptyValue": True,
            },
        ),
    ),
    ("POST", "/admin/reload"): _change("Restart workers with another checkpoint", Reload, _MODEL),
    ("GET", "/admin/gateway"): _read("Identify the process of the gateway", GatewayProcess),
    ("GET", "/admin/keys"): _read("List the API keys with their limits and their use", KeyUses, *_CHANGING),
    ("POST", "/admin/keys/reload"): ApiOperation(
        summary="Read the file of API keys again",
        body=Nothing,
        body_required=False,
        answers={200: {JSON: KeysAnswer}},
        errors=(*_CHANGING, RefusalCode.KEYS_NOT_RELOADED),
    ),
    ("POST", "/admin/tls/reload"): ApiOperation(
        summary="Read the certificate of the server again",
        body=Nothing,
        body_required=False,
        answers={200: {JSON: TlsAnswer}},
        errors=(*_CHANGING, RefusalCode.TLS_NOT_RELOADED),
    ),
}
"""By method and path."""
