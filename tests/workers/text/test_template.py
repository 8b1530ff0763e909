"""Chat templates: equal to transformers if well-behaved, stopped with a typed error otherwise."""

import re
import threading
from typing import Any

import pytest

from protocol.request import TemplateOptions
from tests.workers.text import templates
from workers.text.template import ChatTemplate, TemplateError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": 'Wie geht\'s? <b>东京</b> 😀 "q"'}
SYSTEM = {"role": "system", "content": "  Be brief. "}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}],
}
RESULT = {"role": "tool", "content": '{"sky": "grey"}'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The sky's <state>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, USER],
    "tools": [SYSTEM, USER, CALL, RESULT, RESULT, ANSWER, USER],
}


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate({"default": source}, SPECIAL, **options).render(messages or [USER])


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", templates.ALL)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "with-tools"])
@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no-prompt"])
def test_equals_transformers(name: str, chat: str, tools: list[dict[str, Any]] | None, prompt: bool) -> None:
    from jinja2 import TemplateError as JinjaError
    from transformers.utils.chat_template_utils import render_jinja_template

    source, messages = templates.ALL[name], CHATS[chat]
    ours = ChatTemplate({"default": source}, SPECIAL)
    expected: str | TemplateError
    try:
        expected = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=prompt, **SPECIAL
        )[0][0]
    except JinjaError as error:
        expected = TemplateError(str(error))
    if isinstance(expected, str):
        assert ours.render(messages, tools, add_generation_prompt=prompt) == expected
    else:
        with pytest.raises(TemplateError, match=f"^{re.escape(str(expected))}$"):
            ours.render(messages, tools, add_generation_prompt=prompt)


def test_the_tool_template_is_used_if_tools_are_given() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].function.name }}"})
    assert template.render([USER]) == "plain"
    assert template.render([USER], TOOLS) == "weather"


def test_a_template_takes_tools_when_it_names_them() -> None:
    assert {name for name, source in templates.ALL.items() if ChatTemplate({"default": source}).takes_tools} == {
        "llama3",
        "qwen",
    }
    assert ChatTemplate({"default": "a", "tool_use": "{{ tools }}"}).takes_tools


RUNAWAYS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "hoisted": "{% set r = range(99999) %}{% for i in r recursive %}{% for j in r recursive %}{% endfor %}{% endfor %}",
    "captured": "{% set x %}{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}{% endset %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{{ ([range(99999)] * 99999) | map('list') | map('length') | sum }}",
    "nested": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "nested-json": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s | tojson }}",
    "tests": "{% set r = range(99999) | list %}{{ ([r] * 99999) | select('eq', 1) | list }}",
}


@pytest.mark.parametrize("source", RUNAWAYS.values(), ids=RUNAWAYS)
def test_a_runaway_is_stopped_and_leaves_no_thread(source: str) -> None:
    before = threading.enumerate()
    with pytest.raises(TemplateError, match="ran longer than"):
        render(source, limit_s=0.05)
    assert threading.enumerate() == before


def test_the_time_limit_is_per_render() -> None:
    now = [0.0]
    template = ChatTemplate(
        {"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, limit_s=1, clock=lambda: now[0]
    )
    assert template.render([{"role": "user", "content": "a"}] * 3) == "aaa"
    now[0] = 100.0
    assert template.render([USER]) == USER["content"]

    class Slow(list[Any]):
        def __iter__(self) -> Any:
            for item in super().__iter__():
                now[0] += 0.4
                yield item

    assert template.render(Slow([{"content": "a"}] * 2)) == "aa"
    with pytest.raises(TemplateError, match="longer than 1 s"):
        template.render(Slow([{"content": "a"}] * 3))


BOMBS = {
    "times": "{{ 'a' * 10**8 }}",
    "list-times": "{{ [1] * 10**8 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "doubling-plus": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling-tilde": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling-list": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "center": "{{ 'x' | center(10**8) }}",
    "ljust": "{{ 'x'.ljust(10**8) }}",
    "percent": "{{ '%99999999d' % 1 }}",
    "percent-star": "{{ '%*d' % (10**8, 1) }}",
    "percent-filter": "{{ '%99999999d' | format(1) }}",
    "format": "{{ '{:>99999999}'.format(1) }}",
    "format-nested": "{{ '{:>{}}'.format(1, 10**8) }}",
    "replace": "{% set s = 'a' * 99999 %}{{ s.replace('a', s) }}",
    "replace-filter": "{% set s = 'a' * 99999 %}{{ s | replace('a', s) }}",
    "join": "{% set s = 'a' * 99999 %}{{ (range(99999) | list) | join(s) }}",
    "join-lazy": "{% set s = 'a' * 99999 %}{{ range(99999) | map('string') | join(s) }}",
    "str-join": "{% set s = 'a' * 99999 %}{{ s.join(['b'] * 99999) }}",
    "join-items": "{% set s = 'a' * 99999 %}{{ ([s] * 99999) | join }}",
    "join-attribute": "{% set m = {'s': 'a' * 99999} %}{{ ([m] * 99999) | join(attribute='s') }}",
    "str-join-items": "{% set s = 'a' * 99999 %}{{ ''.join([s] * 99999) }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "batch": "{{ [1] | batch(10**8, 'x') | list }}",
    "expandtabs": "{{ ('\\t' * 99999).expandtabs(99999) }}",
    "indent-filter": "{{ ('\\n' * 99999) | indent('x' * 99999, blank=true) }}",
    "wordwrap": "{{ ('a' * 99999) | wordwrap(1, wrapstring='x' * 99999) }}",
    "translate": "{{ ('a' * 99999).translate({97: 'x' * 99999}) }}",
    "json-indent": "{{ [1] | tojson(indent=10**9) }}",
    "json-separator": "{{ range(9999) | list | tojson(separators=('x' * 99999, ':')) }}",
    "json-depth": "{% set n = namespace(s=range(9999) | list) %}"
    "{% for i in range(200) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s | tojson(indent=9) }}",
    "printed-list": "{% set s = 'a' * 99999 %}{{ [s] * 99999 }}",
    "string-filter": "{% set s = 'a' * 99999 %}{{ ([s] * 99999) | string | length }}",
    "printed": "{% set x %}{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    "long": "{% for i in range(99) %}{{ 'a' * 99999 }}{% endfor %}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_template_cannot_build_what_is_too_large(source: str) -> None:
    with pytest.raises(TemplateError, match=r"bound|prints more than"):
        render(source, limit_s=5)


def test_the_size_bound_at_its_edge() -> None:
    assert len(render("{{ 'a' * 10 }}{{ 'b' * 10 }}", max_chars=20)) == 20
    with pytest.raises(TemplateError, match="over the bound of 20 characters"):
        render("{{ 'a' * 10 }}{{ 'b' * 11 }}", max_chars=20)


REFUSED = {
    "own-words": ("{{ raise_exception('no system role') }}", "^no system role$"),
    "escape": ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    "mutation": ("{{ messages.append(1) }}", "SecurityError"),
    "undefined": ("{{ a.b.c }}", "UndefinedError"),
    "include": ("{% include 'secrets' %}", "failed"),
    "lipsum": ("{{ lipsum(99) }}", "UndefinedError"),
    "recursion": ("{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(1) }}", "recurses"),
    "sum-of-lists": ("{{ ([[1] * 99999] * 99999) | sum(start=[]) }}", "sums lists"),
    "bad-type": ("{{ 1 + 'a' }}", "TypeError"),
}


@pytest.mark.parametrize(("source", "match"), REFUSED.values(), ids=REFUSED)
def test_a_failure_is_a_template_error(source: str, match: str) -> None:
    with pytest.raises(TemplateError, match=match):
        render(source)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% endfor %}", "{{ 1 | nosuchfilter }}", "x" * ((1 << 20) + 1)]
)
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(TemplateError, match=r"compile|over the bound"):
        ChatTemplate({"default": source})


def test_the_date_is_todays() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_a_given_time_renders_identically_everywhere() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%d %b %Y %H:%M') }}"})
    assert template.render([USER], now=1_700_000_000) == "14 Nov 2023 22:13"


@pytest.mark.parametrize("thinks", [True, False])
def test_options_equal_the_variables_of_transformers(thinks: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for source in templates.ALL.values():
        if "enable_thinking" in source:
            expected = render_jinja_template(
                [[USER]], chat_template=source, add_generation_prompt=True, enable_thinking=thinks, **SPECIAL
            )[0][0]
            ours = ChatTemplate({"default": source}, SPECIAL)
            assert ours.render([USER], options=TemplateOptions(enable_thinking=thinks)) == expected
            assert (ours.render([USER]) == expected) == thinks, "thinking is the default of this template"


def test_no_option_replaces_a_variable_of_the_server() -> None:
    taken = {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", *SPECIAL}
    assert not taken & set(TemplateOptions.__struct_fields__)


def test_templates_are_deterministic() -> None:
    with pytest.raises(TemplateError, match="random"):
        ChatTemplate({"default": "{{ messages | random }}"})
