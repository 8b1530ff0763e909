"""Chat templates: jinja in a sandbox, with bounds on time and size, and the helpers that real templates use.

A template comes with a checkpoint, and a checkpoint may come from anywhere. It must not reach outside the sandbox, and
it must not hold up the worker: rendering runs on the event loop. How the time limit works, and why so:

- The limit is checked by code that is compiled into the template: at each turn of a loop, at each call (macros, loops
  that recurse, methods, filters, tests) and at each printed value. There is nothing else in the language that repeats.
- A watchdog thread could not stop a render and would leave it behind; a trace function slows every render and fights
  debuggers and coverage; SIGALRM works on the main thread only and interrupts whatever runs there, asyncio included.
- A check is only as fine as the longest single operation, so the operations that make much from little (`*`, `+`, `~`,
  `**`, `range`, padding, formats, `replace`, results of filters and calls) are bounded in size. What hostile nesting
  can still do to memory ends this worker and no other: it is a process of its own.

Rendering equals transformers' `apply_chat_template`; the tests compare them.
"""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import ext, filters, nodes, sandbox
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro

from protocol.bounds import MAX_REASON, MAX_TEXT
from workers.text.template_budget import MAX_ITEMS, RenderBudget, TemplateError
from workers.text.tokenizer import Messages, Tools

__all__ = ["ChatTemplate", "TemplateError"]

DEFAULT_LIMIT_S = 2.0
MAX_TEMPLATE_CHARS = 1 << 20
MAX_JSON_SPACE = 256
"""Of an indent or a separator in JSON."""
_COUNTED = frozenset({"slice", "batch"})
"""Filters that make as many elements as a number says."""
_WHOLE = frozenset({"string", "pprint", "escape", "e", "forceescape", "safe"})
"""Filters that write out whatever they are given."""


class _Generation(ext.Extension):
    """`{% generation %}` marks the assistant's turns for training; here its body is rendered as it stands."""

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
        self.filters.pop("random")  # a request that goes on elsewhere must have the same prompt there
        self.globals["raise_exception"] = _raise_exception
        self.filters["tojson"] = self._tojson
        self.filters["join"] = self._join_filter()
        self.filters = {name: _checked(name, function, budget) for name, function in self.filters.items()}
        self.tests = {name: _checked(name, function, budget) for name, function in self.tests.items()}
        self.filters["_turns"] = budget.turns
        self.filters["_join"] = self._join

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = _filter("_turns", loop.iter)
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
        """Plain JSON, as transformers has it; jinja's own filter escapes HTML."""
        for space in (indent or 0, *(separators or ())):
            self._budget.check_size(abs(space) if isinstance(space, int) else len(space), MAX_JSON_SPACE)
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        if indent is None:
            self._budget.check_whole(value)
            return encoder.encode(value)
        # An indent stands before every element and grows with the depth: its sum is known only on the way.
        parts, size = [], 0
        for part in encoder.iterencode(value):
            size += len(part)
            self._budget.check_time()
            self._budget.check_size(size, self._budget.max_chars)
            parts.append(part)
        return "".join(parts)

    def _join(self, parts: list[Any]) -> str:
        """The `~` operator."""
        return str(self._budget.check_value("".join(map(str, parts))))


def _filter(name: str, node: nodes.Node) -> nodes.Node:
    return nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)


def _rewrite_concatenations(node: nodes.Node) -> None:
    """`a ~ b` becomes a filter, which can be bounded; jinja compiles the operator to a bare join."""
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
    """A filter or test under the budget; `wraps` keeps jinja's marks on it (pass_context and the like)."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        budget.check_time()
        if name in _COUNTED:
            for argument in (*args[1:], *kwargs.values()):
                budget.check_size(abs(argument) if isinstance(argument, int) else 0, MAX_ITEMS)
        elif name in _WHOLE:
            budget.check_whole(args)
        if name == "sum" and any(isinstance(argument, list | tuple) for argument in (*args[2:], *kwargs.values())):
            raise TemplateError("the chat template adds lists up")  # one by one: the square of their length
        index = next((index for index, argument in enumerate(args) if isinstance(argument, str)), len(args))
        if index < len(args):  # before the value come jinja's own context arguments
            budget.check_string_method(name, args[index], args[index + 1 :], kwargs)
        return budget.check_value(function(*args, **kwargs))

    return checked


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message)[:MAX_REASON])


def _strftime(now: int) -> Callable[[str], str]:
    """`strftime_now` of the templates. A time that was given is one on every machine, so it is in UTC."""
    moment = datetime.fromtimestamp(now, UTC) if now else datetime.now()
    return moment.strftime


class ChatTemplate:
    """A model's chat templates, compiled once. `render` may be called from any thread, one at a time."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        limit_s: float = DEFAULT_LIMIT_S,
        max_chars: int = MAX_TEXT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources` has a "default" and perhaps a "tool_use", which is taken when tools are given.

        Raises `TemplateError` for a template that is too long or does not compile.
        """
        self._budget = RenderBudget(clock, limit_s, max_chars)
        self._max_chars = max_chars
        self._special_tokens = dict(special_tokens or {})
        self._lock = threading.Lock()
        environment = _Environment(self._budget)
        self._budget.restart()  # constant expressions are computed while compiling
        self._templates = {name: _compile(environment, name, source) for name, source in sources.items()}
        self.takes_tools = any(_names_tools(environment, source) for source in sources.values())

    def render(
        self, messages: Messages, tools: Tools | None = None, *, add_generation_prompt: bool = True, now: int = 0
    ) -> str:
        """The prompt of a conversation at the time `now` (seconds since 1970; 0 is the clock's).

        Raises `TemplateError` with the template's own message, or why it failed."""
        named = self._templates.get("tool_use") if tools else None
        template = named or self._templates["default"]
        variables = {
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
            except Exception as error:  # a template may fail with anything that Python has
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
