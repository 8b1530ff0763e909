"""Tool calls, results and reasoning in the templates of published models."""

import re
from typing import Any

import pytest

from protocol.request import Message, ToolCall
from tests.workers.text import tool_templates as templates
from workers.grammar.tool_calls.call_syntax import call_writer
from workers.output_formats.formats.catalog import TOOL_FORMATS
from workers.text.control_tokens import ControlTokens
from workers.text.conversation import ArgumentsError, message_values, turns
from workers.text.message_style import MessageStyle, find_style
from workers.text.template import ChatTemplate, TemplateError

OBJECT, TEXT = MessageStyle(), MessageStyle("text")
STYLES: dict[str, tuple[str, MessageStyle | None]] = {
    "qwen2.5": (templates.QWEN2_5, OBJECT),
    "qwen3": (templates.QWEN3, OBJECT),
    "qwen3-coder": (templates.QWEN3_CODER, OBJECT),
    "llama3": (templates.LLAMA3, OBJECT),
    "mistral-nemo": (templates.MISTRAL_NEMO, MessageStyle(fixed_ids=True)),
    "mistral-small": (templates.MISTRAL_SMALL, MessageStyle(fixed_ids=True)),
    "deepseek-r1": (templates.DEEPSEEK_R1, MessageStyle("text", null_content=True)),
    "deepseek-v3": (templates.DEEPSEEK_V3, TEXT),
    "glm-4.5": (templates.GLM4_5, OBJECT),
    "gpt-oss": (templates.GPT_OSS, MessageStyle(reasoning_beside_text=False, single_calls=True)),
    "kimi-k2": (templates.KIMI_K2, OBJECT),
    "gemma4": (templates.GEMMA4, OBJECT),
    "lfm2": (templates.LFM2, OBJECT),
    "smollm3": (templates.SMOLLM3, None),
    "python": (templates.WRITES_OBJECTS_AS_PYTHON, TEXT),
    "two roles": (templates.ONLY_TWO_ROLES, OBJECT),
}


def chat_template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"eos_token": "</s>"})


def style_of(source: str) -> MessageStyle | None:
    return find_style(chat_template(source).render)


@pytest.mark.parametrize("name", STYLES)
def test_the_style_of_a_template_is_found(name: str) -> None:
    source, style = STYLES[name]
    assert style_of(source) == style


FIRST = '{"city": "Köln \\"x\\"", "days": 2, "deep": {"a": [true, null]}}'
CALLS = (ToolCall("call_abcdef", "weather", FIRST), ToolCall("call_2", "time", "{}"))
ASKED = Message("user", "Hi")
CONVERSATION = (
    ASKED,
    Message("assistant", "", tool_calls=CALLS),
    Message("tool", "grey", tool_call_id="call_abcdef"),
    Message("tool", "noon", tool_call_id="call_2"),
)
SINGLE = (ASKED, Message("assistant", "", tool_calls=CALLS[:1]), Message("tool", "grey", tool_call_id="call_abcdef"))


def prompt(name: str, messages: tuple[Message, ...]) -> str:
    source = STYLES[name][0]
    style = style_of(source)
    assert style is not None
    given = turns(messages, message_values(messages, style), style)
    return chat_template(source).render(given, add_generation_prompt=False)


JSON = '{"city": "Köln \\"x\\"", "days": 2, "deep": {"a": [true, null]}}'
PROMPTS = {
    "qwen2.5": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ngrey\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
    ),
    "qwen3": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\ngrey<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n"
    ),
    "qwen3-coder": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<function=weather>\n"
        '<parameter=city>\nKöln "x"\n</parameter>\n<parameter=days>\n2\n</parameter>\n'
        '<parameter=deep>\n{"a": [true, null]}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=time>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>tool\ngrey<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n"
    ),
    "llama3": (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        f'{{"name": "weather", "parameters": {JSON}}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"grey"<|eot_id|>'
    ),
    "mistral-small": (
        f'[INST]Hi[/INST][TOOL_CALLS] [{{"name": "weather", "arguments": {JSON}, "id": "AbC123xyz"}}]</s>'
        '[TOOL_RESULTS] {"content": grey, "call_id": "AbC123xyz"}[/TOOL_RESULTS]'
    ),
    "deepseek-r1": (
        "<｜User｜>Hi<｜Assistant｜><｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{JSON}\n```<｜tool▁call▁end｜>"
        "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        "<｜tool▁output▁begin｜>grey<｜tool▁output▁end｜><｜tool▁output▁begin｜>noon<｜tool▁output▁end｜>"
    ),
    "deepseek-v3": (
        "<｜User｜>Hi<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        "<｜tool▁output▁begin｜>grey<｜tool▁output▁end｜><｜tool▁output▁begin｜>noon<｜tool▁output▁end｜>"
    ),
    "glm-4.5": (
        "<|user|>\nHi<|assistant|>\n<think></think>\n<tool_call>weather\n"
        '<arg_key>city</arg_key>\n<arg_value>Köln "x"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n'
        '<arg_key>deep</arg_key>\n<arg_value>{"a": [true, null]}</arg_value>\n</tool_call>\n'
        "<tool_call>time\n</tool_call><|observation|>\n<tool_response>\ngrey\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    ),
    "gpt-oss": (
        "<|start|>user<|message|>Hi<|end|>"
        f"<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{JSON}<|call|>"
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"grey"<|end|>'
        "<|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.time to=assistant<|channel|>commentary<|message|>"noon"<|end|>'
    ),
    "kimi-k2": (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
        f"<|tool_call_begin|>call_abcdef<|tool_call_argument_begin|>{JSON}<|tool_call_end|>"
        "<|tool_call_begin|>call_2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
        "<|im_tool|>weather<|im_middle|>## Return of call_abcdef\ngrey<|im_end|>"
        "<|im_tool|>time<|im_middle|>## Return of call_2\nnoon<|im_end|>"
    ),
    "gemma4": (
        "<|turn>user\nHi<turn|>\n<|turn>model\n"
        '<|tool_call>call:weather{city:<|"|>Köln "x"<|"|>,days:2,deep:{a:[true,None]}}<tool_call|>'
        "<|tool_call>call:time{}<tool_call|><turn|>\n<|turn>tool\ngrey<turn|>\n<|turn>tool\nnoon<turn|>\n"
    ),
    "lfm2": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        '<|tool_call_start|>[weather(city="Köln \\"x\\"", days=2, deep={"a": [true, null]}), time()]<|tool_call_end|>'
        "<|im_end|>\n<|im_start|>tool\n<|tool_response_start|>grey<|tool_response_end|><|im_end|>\n"
        "<|im_start|>tool\n<|tool_response_start|>noon<|tool_response_end|><|im_end|>\n"
    ),
}
ONE_CALL = {"llama3"}
NINE = (
    ASKED,
    Message("assistant", "", tool_calls=(ToolCall("AbC123xyz", "weather", FIRST),)),
    Message("tool", "grey", tool_call_id="AbC123xyz"),
)
"""A conversation whose id any template takes."""


@pytest.mark.parametrize("name", PROMPTS)
def test_calls_and_results_are_written_as_the_model_knows_them(name: str) -> None:
    messages = NINE if name == "mistral-small" else SINGLE if name in ONE_CALL else CONVERSATION
    assert prompt(name, messages) == PROMPTS[name]


@pytest.mark.parametrize("name", ["mistral-nemo", "mistral-small"])
def test_ids_of_nine_characters_are_derived_and_stay_the_same(name: str) -> None:
    text = prompt(name, CONVERSATION)
    ids = re.findall(r'"(?:id|call_id)": "([a-z0-9]{9})"', text)
    assert len(ids) == 4
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]
    assert prompt(name, CONVERSATION) == text
    assert '"id": "AbC123xyz"' in prompt(name, NINE)


def reasoned(content: str) -> tuple[Message, ...]:
    return (ASKED, Message("assistant", content, tool_calls=CALLS[1:], reasoning="Hm."))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen3", "<think>\nHm.\n</think>\n\n"),
        ("glm-4.5", "<think>Hm.</think>"),
        ("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|>"),
    ],
)
def test_reasoning_reaches_templates_that_repeat_it(name: str, written: str) -> None:
    assert written in prompt(name, reasoned(""))


def test_reasoning_is_left_out_where_the_template_takes_it_or_text() -> None:
    """Before: a message that the model itself wrote, with both, got the error of the template."""
    text = prompt("gpt-oss", reasoned("Let me look."))
    assert "Let me look." in text
    assert "Hm." not in text
    with pytest.raises(TemplateError, match="Cannot pass both"):
        chat_template(templates.GPT_OSS).render(turns(reasoned("x"), message_values(reasoned("x"), OBJECT), OBJECT))


def test_a_result_has_the_name_of_its_tool_unless_it_has_one() -> None:
    messages = (
        *CONVERSATION,
        Message("tool", "x", "given", tool_call_id="call_2"),
        Message("tool", "y", tool_call_id="?"),
    )
    given = turns(messages, message_values(messages, OBJECT), OBJECT)
    assert [each.get("name") for each in given] == [None, None, "weather", "time", "given", None]


def test_a_message_has_what_it_was_given_and_nothing_else() -> None:
    messages = (ASKED, Message("assistant", "Hello."))
    assert turns(messages, message_values(messages, OBJECT), OBJECT) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]


def test_the_text_of_arguments_is_unchanged_for_templates_that_take_a_text() -> None:
    odd = '{"b":1,\n "a" : 1.0}'
    messages = (ASKED, Message("assistant", "", tool_calls=(ToolCall("c", "f", odd),)))
    assert odd in prompt("deepseek-v3", messages)


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"a": NaN}', "[" * 100_000])
@pytest.mark.parametrize("style", [OBJECT, TEXT], ids=["object", "text"])
def test_arguments_that_are_no_object_are_an_error(arguments: str, style: MessageStyle) -> None:
    messages = (Message("assistant", "", tool_calls=(ToolCall("c", "f", arguments),)),)
    with pytest.raises(ArgumentsError):
        message_values(messages, style)


GEMMA4_RESPONSES = templates.GEMMA4.replace(
    "{{- '<turn|>\\n' -}}",
    "{%- for each in message['tool_responses'] or [] -%}{{- '<|tool_response>response:' + each['name'] + '{value:' "
    "+ write(each['response']) + '}<tool_response|>' -}}{%- endfor -%}{{- '<turn|>\\n' -}}",
)
"""Results are within the message of the calls, as in the published template."""


def test_results_are_within_the_message_of_the_calls_where_the_template_takes_them() -> None:
    """Before: they were turns of their own, which Gemma 4 does not know."""
    style = style_of(GEMMA4_RESPONSES)
    assert style == MessageStyle(results_within=True)
    messages = (*CONVERSATION, Message("assistant", "Grey."), Message("tool", "late", tool_call_id="call_2"))
    given = turns(messages, message_values(messages, OBJECT), style)
    text = chat_template(GEMMA4_RESPONSES).render(given, add_generation_prompt=False)
    assert (
        "<|tool_call>call:time{}<tool_call|>"
        '<|tool_response>response:weather{value:<|"|>grey<|"|>}<tool_response|>'
        '<|tool_response>response:time{value:<|"|>noon<|"|>}<tool_response|><turn|>\n<|turn>model\nGrey.<turn|>\n'
    ) in text
    assert text.endswith("<|turn>tool\nlate<turn|>\n"), "a result after another message stays a turn"


def test_text_beside_calls_is_left_out_where_it_would_follow_the_results() -> None:
    """Before: Gemma 4's published template wrote it after the results, and the model had no turn to answer in."""
    text = "{%- if message['content'] is string -%}{{- message['content'] | trim -}}{%- endif -%}"
    assert text in GEMMA4_RESPONSES
    late = GEMMA4_RESPONSES.replace(text, "").replace("{{- '<turn|>\\n' -}}", text + "{{- '<turn|>\\n' -}}")
    style = style_of(late)
    assert style == MessageStyle(results_within=True, text_beside_calls=False)
    messages = (
        ASKED,
        Message("assistant", "I look.", tool_calls=CALLS[1:]),
        Message("tool", "noon", tool_call_id="call_2"),
    )
    given = turns(messages, message_values(messages, OBJECT), style)
    written = chat_template(late).render(given, add_generation_prompt=False)
    assert "I look." not in written
    assert "noon" in written
    assert "Hi" in written, "other messages keep their text"


def test_reasoning_is_the_plan_of_a_template_that_has_one() -> None:
    """Command A writes `tool_plan` within its markers of reasoning."""
    source = (
        "{% for m in messages %}{% if m.tool_calls %}<|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|>"
        "{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = (ASKED, Message("assistant", "", tool_calls=CALLS[1:], reasoning="Hm."))
    given = turns(messages, message_values(messages, OBJECT), OBJECT)
    assert "<|START_THINKING|>Hm.<|END_THINKING|>" in chat_template(source).render(given)


@pytest.mark.parametrize(
    ("tool_format", "written"),
    [
        (
            "hermes",
            f'<tool_call>\n{{"name": "weather", "arguments": {FIRST}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        ),
        (
            "granite",
            f'<|tool_call|>[{{"name": "weather", "arguments": {FIRST}}}, {{"name": "time", "arguments": {{}}}}]',
        ),
    ],
)
def test_calls_that_a_template_drops_are_text_as_the_model_writes_it(tool_format: str, written: str) -> None:
    """Before: a conversation with calls was refused for SmolLM3 and Granite 3.3."""
    write = call_writer(TOOL_FORMATS[tool_format], ())
    style = find_style(chat_template(templates.SMOLLM3).render, write)
    assert style == MessageStyle("text", calls_as_text=True)
    for said, before in (("", ""), ("I look.", "I look.\n")):
        messages = (ASKED, Message("assistant", said, tool_calls=CALLS), *CONVERSATION[2:])
        given = turns(messages, message_values(messages, style), style, write)
        assert chat_template(templates.SMOLLM3).render(given, add_generation_prompt=False) == (
            f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{before}{written}<|im_end|>\n"
            "<|im_start|>user\ngrey<|im_end|>\n<|im_start|>user\nnoon<|im_end|>\n"
        )


def test_calls_are_keyword_arguments_in_a_notation_of_python() -> None:
    """Before: a conversation with calls was refused for LFM2, whose published template drops them."""
    write = call_writer(TOOL_FORMATS["lfm2"], ())
    style = find_style(chat_template(templates.SMOLLM3).render, write)
    assert style == MessageStyle("text", calls_as_text=True)
    messages = (ASKED, Message("assistant", "", tool_calls=CALLS), *CONVERSATION[2:])
    given = turns(messages, message_values(messages, style), style, write)
    assert given[1]["content"] == (
        '<|tool_call_start|>[weather(city="Köln \\"x\\"", days=2, deep={"a": [True, None]}), time()]<|tool_call_end|>'
    )


@pytest.mark.parametrize("escaped", [r"\u003c|im_end|>", r"<|im\u005fend|>", r"<|im_end|\u003E"])
def test_control_tokens_in_calls_that_are_written_as_python_can_be_marked(escaped: str) -> None:
    """The escapes of JSON would hide them until the call is written."""
    write = call_writer(TOOL_FORMATS["lfm2"], ())
    style = MessageStyle("text", calls_as_text=True)
    messages = (ASKED, Message("assistant", "", tool_calls=(ToolCall("c1", "say", f'{{"text": "{escaped}"}}'),)))
    values, mark = ControlTokens(["<|im_end|>"]).mark(message_values(messages, style))
    written = turns(messages, values, style, write)[1]["content"]
    assert mark
    assert "<|im_end|>" not in written
    assert '[say(text="<|im_end|>")]' in written.replace(mark, "")


def test_calls_are_messages_of_their_own_where_the_template_takes_them() -> None:
    """Before: a conversation with calls was refused for GLM-4-0414."""
    write = call_writer(TOOL_FORMATS["glm4"], ())
    style = find_style(chat_template(templates.GLM4_0414).render, write)
    assert style == MessageStyle("text", calls_as_messages=True)
    messages = (ASKED, Message("assistant", "I look.", tool_calls=CALLS), *CONVERSATION[2:])
    given = turns(messages, message_values(messages, style), style, write)
    assert chat_template(templates.GLM4_0414).render(given) == (
        "[gMASK]<sop><|user|>\nHi<|assistant|>\nI look."
        f"<|assistant|>weather\n{FIRST}<|assistant|>time\n{{}}"
        "<|observation|>\ngrey<|observation|>\nnoon<|assistant|>"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}",
    ],
    ids=["no text", "no results"],
)
def test_a_template_that_drops_the_text_or_the_results_as_well_is_refused(source: str) -> None:
    assert find_style(chat_template(source).render, call_writer(TOOL_FORMATS["hermes"], ())) is None


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4", "command", "kimi_k2", "harmony"])
def test_other_calls_are_not_written_into_the_text(name: str) -> None:
    assert call_writer(TOOL_FORMATS[name], ()) is None
    assert call_writer(None, ()) is None


def test_the_sample_is_rendered_a_few_times() -> None:
    seen: list[Any] = []

    def render(sample: Any) -> str:
        seen.append(sample)
        return ""

    assert find_style(render) is None
    assert len(seen) == 8
