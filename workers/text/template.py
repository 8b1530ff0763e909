"""Chat templates: sandboxed Jinja with limits on time and size, and the functions that published templates use.

A template is part of a checkpoint, which may be untrusted. It must not escape the sandbox, and it must not block the
worker, because rendering runs on the event loop. The time limit works as follows:

- Code that is compiled into the template checks the limit: in each iteration of a loop, at each call (macros, recursive
  loops, methods, filters, tests) and at each printed value. Nothing else in the language repeats.
- A watchdog thread could not stop a render. A trace function slows every render and conflicts with debuggers and
  coverage. SIGALRM works on the main thread only and interrupts whatever runs there, asyncio included.
- Checks are only as frequent as single operations are short. Operations that build large values from small ones (`*`,
  `+`, `~`, `**`, `range`, padding, formats, `replace`, results of filters and calls) are therefore limited in size. If
  hostile nesting exhausts memory all the same, it ends this worker process and no other.

The output equals that of transformers' `apply_chat_template`; the tests compare them.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import ext, filters, nodes, sandbox
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from msgspec import structs

from protocol.bounds import MAX_REASON, MAX_TEXT
from protocol.request import TemplateOptions
from workers.text.control_tokens import DIGITS, MARK
from workers.text.template_budget import MAX_ITEMS, RenderBudget, TemplateError
from workers.text.tokenizer import NO_OPTIONS, Messages, Tools

__all__ = ["ChatTemplate", "TemplateError"]

DEFAULT_LIMIT_S = 2.0
MAX_TEMPLATE_CHARS = 1 << 20
MAX_JSON_SPACE = 256
"""Characters of an indent or a separator in JSON."""
_NOT_ASCII = re.compile(f"{MARK}[{DIGITS}]*|[^\x00-~]")
"""Characters that `ensure_ascii` escapes, and marks of control tokens, which stay to be found in the prompt."""
_COUNTED = frozenset({"slice", "batch"})
"""Filters that take the number of elements to build."""
_WHOLE = frozenset({"string", "pprint", "escape", "e", "forceescape", "safe"})
"""Filters that print their whole argument."""


class _Generation(ext.Extension):
    """`{% generation %}` marks the assistant's messages for training; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    """transformers' environment with a budget compiled into it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: RenderBudget) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols], finalize=budget.print
        )
        self._budget = budget
        self.globals.pop("lipsum")  # prints any number of words in one call
        self.filters.pop("random")  # a resumed request must have the same prompt on another worker
        self.globals["raise_exception"] = _raise_exception
        self.filters["tojson"] = self._tojson
        self.filters["join"] = self._join_filter()
        self.filters = {name: _checked(name, function, budget) for name, function in self.filters.items()}
        self.tests = {name: _checked(name, function, budget) for name, function in self.tests.items()}
        self.filters["_iterate"] = budget.iterate
        self.filters["_join"] = self._join

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = _filter("_iterate", loop.iter)
        _rewrite_concatenations(source)
        return super()._generate(source, name, filename, defer_init)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.check_time()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        if isinstance(getattr(method, "__self__", None), str):
            self._budget.check_string_method(method.__name__, method.__self__, args, kwargs)
        return self._budget.check_value(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.check_operands(operator, left, right)
        return self._budget.check_value(super().call_binop(context, operator, left, right))

    def _join_filter(self) -> Callable[..., str]:
        @functools.wraps(filters.do_join)
        def join(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
            items = list(value)
            if attribute is not None:
                items = list(map(filters.make_attrgetter(self, attribute), items))
            self._budget.check_string_method("join", str(d), (items,), {})
            return str(filters.do_join(context, items, d))

        return join

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON, as in transformers; jinja's own filter escapes HTML."""
        for space in (indent or 0, *(separators or ())):
            self._budget.check_size(abs(space) if isinstance(space, int) else len(space), MAX_JSON_SPACE)
        encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        encoded = self._encode(encoder, value, indented=indent is not None)
        return _NOT_ASCII.sub(_escape, encoded) if ensure_ascii else encoded

    def _encode(self, encoder: json.JSONEncoder, value: Any, *, indented: bool) -> str:
        if not indented:
            self._budget.check_whole(value)
            return encoder.encode(value)
        # An indent precedes every element and grows with the depth: its total is known only while encoding.
        parts, size = [], 0
        for part in encoder.iterencode(value):
            size += len(part)
            self._budget.check_time()
            self._budget.check_size(size, self._budget.max_chars)
            parts.append(part)
        return "".join(parts)

    def _join(self, parts: list[Any]) -> str:
        """Implements the `~` operator."""
        return str(self._budget.check_value("".join(map(str, parts))))


def _escape(match: re.Match[str]) -> str:
    """Escape a character as JSON does with `ensure_ascii`; a mark stays."""
    return match[0] if match[0][0] == MARK else json.dumps(match[0])[1:-1]


def _filter(name: str, node: nodes.Node) -> nodes.Node:
    return nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)


def _rewrite_concatenations(node: nodes.Node) -> None:
    """Replace `a ~ b` by a filter, which can be limited; jinja compiles the operator to a plain join."""
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _rewrite_concatenations(value)
            if isinstance(value, nodes.Concat):
                setattr(node, name, _filter("_join", nodes.List(value.nodes).set_lineno(value.lineno)))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _rewrite_concatenations(item)
                    if isinstance(item, nodes.Concat):
                        value[index] = _filter("_join", nodes.List(item.nodes).set_lineno(item.lineno))


def _checked(name: str, function: Any, budget: RenderBudget) -> Callable[..., Any]:
    """Wrap a filter or test in budget checks; `wraps` keeps jinja's attributes (pass_context and the like)."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        budget.check_time()
        if name in _COUNTED:
            for argument in (*args[1:], *kwargs.values()):
                budget.check_size(abs(argument) if isinstance(argument, int) else 0, MAX_ITEMS)
        elif name in _WHOLE:
            budget.check_whole(args)
        if name == "sum" and any(isinstance(argument, list | tuple) for argument in (*args[2:], *kwargs.values())):
            raise TemplateError(
                "the chat template sums lists, which is not supported"
            )  # one by one, which takes quadratic time
        index = next((index for index, argument in enumerate(args) if isinstance(argument, str)), len(args))
        if index < len(args):  # jinja's own context arguments come before the value
            budget.check_string_method(name, args[index], args[index + 1 :], kwargs)
        return budget.check_value(function(*args, **kwargs))

    return checked


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message)[:MAX_REASON])


def _strftime(now: int) -> Callable[[str], str]:
    """Return `strftime_now` for templates. A given time is formatted in UTC, to be the same on every machine."""
    moment = datetime.fromtimestamp(now, UTC) if now else datetime.now()
    return moment.strftime


class ChatTemplate:
    """Chat templates of a model, compiled once. `render` may be called from any thread, one at a time."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        limit_s: float = DEFAULT_LIMIT_S,
        max_chars: int = MAX_TEXT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources` has a template "default", and possibly "tool_use", which is used if tools are given.

        Raises `TemplateError` for a template that is too long or does not compile.
        """
        self._budget = RenderBudget(clock, limit_s, max_chars)
        self._max_chars = max_chars
        self._special_tokens = dict(special_tokens or {})
        self._lock = threading.Lock()
        environment = _Environment(self._budget)
        self._budget.restart()  # constant expressions are evaluated at compile time
        self._templates = {name: _compile(environment, name, source) for name, source in sources.items()}
        self.takes_tools = any(_names_tools(environment, source) for source in sources.values())

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = True,
        now: int = 0,
        options: TemplateOptions = NO_OPTIONS,
    ) -> str:
        """Return the prompt of a conversation at time `now`, in seconds since 1970; 0 is the current time. Those of
        the `options` that are set are variables of the template.

        Raises `TemplateError` with the template's own message, or the reason of the failure.
        """
        named = self._templates.get("tool_use") if tools else None
        template = named or self._templates["default"]
        variables = {
            **{name: value for name, value in structs.asdict(options).items() if value is not None},
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": _strftime(now),
        }
        with self._lock:
            self._budget.restart()
            try:
                return self._collect(template.generate(**variables))
            except TemplateError:
                raise
            except RecursionError:
                raise TemplateError("the chat template recurses too deeply") from None
            except Exception as error:  # a template may raise any Python exception
                text = f"{type(error).__name__}: {error}"
                raise TemplateError(f"the chat template failed: {text[:500]}") from error

    def _collect(self, pieces: Iterable[str]) -> str:
        parts, size = [], 0
        for piece in pieces:
            size += len(piece)
            if size > self._max_chars:
                raise TemplateError(f"the chat template's prompt is over the bound of {self._max_chars} characters")
            parts.append(piece)
        return "".join(parts)


def _names_tools(environment: _Environment, source: str) -> bool:
    return any(name.name == "tools" and name.ctx == "load" for name in environment.parse(source).find_all(nodes.Name))


def _compile(environment: _Environment, name: str, source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateError(f"the template {name!r} is over the bound of {MAX_TEMPLATE_CHARS} characters")
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(f"the template {name!r} does not compile: {error}") from error
    except (RecursionError, SyntaxError, MemoryError) as error:
        raise TemplateError(f"the template {name!r} does not compile: {type(error).__name__}") from error
