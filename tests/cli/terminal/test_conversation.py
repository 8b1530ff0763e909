"""The messages, parameters and slash commands of a conversation."""

import pytest

from cli.terminal.conversation import COMMANDS, HELP, Conversation, command_of
from protocol.request import Limits, Message, Sampling, ToolCall


@pytest.fixture
def conversation() -> Conversation:
    return Conversation(Sampling(), Limits(max_tokens=16), "Be brief.")


def test_a_request_has_all_messages(conversation: Conversation) -> None:
    conversation.ask("Hello")
    conversation.add_reply("Hi.")
    assert conversation.ask("Who are you?").messages == (
        Message("system", "Be brief."),
        Message("user", "Hello"),
        Message("assistant", "Hi."),
        Message("user", "Who are you?"),
    )


def test_a_message_without_a_reply_is_removed(conversation: Conversation) -> None:
    conversation.ask("Hello")
    conversation.remove_last()
    assert conversation.messages == (Message("system", "Be brief."),)


def test_clear_keeps_the_system_message(conversation: Conversation) -> None:
    conversation.ask("Hello")
    conversation.execute("/clear")
    assert conversation.messages == (Message("system", "Be brief."),)


def test_system_is_shown_and_set(conversation: Conversation) -> None:
    assert conversation.execute("/system") == "system: Be brief."
    conversation.ask("Hello")
    conversation.execute("/system Speak German.")
    assert conversation.messages == (Message("system", "Speak German."),)


def test_params_are_shown_and_set(conversation: Conversation) -> None:
    shown = conversation.execute("/params temperature=0.5 top_k=3 seed=9 max_tokens=4")
    penalties = "presence_penalty=0.0  frequency_penalty=0.0  repetition_penalty=1.0"
    assert shown == f"temperature=0.5  top_k=3  top_p=1.0  min_p=0.0  seed=9  {penalties}  max_tokens=4"
    assert conversation.execute("/params") == shown
    ask = conversation.ask("Hello")
    assert ask.sampling == Sampling(temperature=0.5, top_k=3, seed=9)
    assert ask.limits == Limits(max_tokens=4)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/params heat=1", "heat=1: write NAME=VALUE, NAME one of temperature, top_k"),
        ("/params top_k", "top_k: write NAME=VALUE"),
        ("/params top_k=many", "top_k: 'many' is not a number"),
        ("/params top_p=0", "top_p: must be a number above 0 and up to 1, not 0.0"),
        ("/params top_p=nan", "top_p: must be a number above 0"),
        ("/params max_tokens=0", "max_tokens: must be"),
        ("/params repetition_penalty=0", "repetition_penalty: must be a number from 0.01 to 100, not 0.0"),
        ("/params temperature=0.5 top_k=-1", "top_k: must be a whole number from 0 to 1048576, not -1"),
    ],
)
def test_a_wrong_parameter_is_named_and_nothing_is_set(conversation: Conversation, line: str, answer: str) -> None:
    before = conversation.execute("/params")
    assert conversation.execute(line).startswith(answer)
    assert conversation.execute("/params") == before


def test_help_and_unknown_commands(conversation: Conversation) -> None:
    assert conversation.execute("/help") == HELP
    said = conversation.execute("/exif now")
    assert said.startswith("There is no command /exif; there are /help, /exit, /quit, /bye, /clear, ")
    assert all(command in HELP for command in COMMANDS)


def test_a_line_with_a_path_is_no_command() -> None:
    assert [command_of(line) for line in ("/usr/bin", "/", "/Help", "/exit now", "a /help", "/2 is half")] == [
        "",
        "/",
        "/help",
        "/exit",
        "",
        "",
    ]


def test_a_reply_keeps_its_reasoning_and_calls_for_later_turns(conversation: Conversation) -> None:
    call = ToolCall("c1", "now", "{}")
    conversation.ask("What time is it?")
    conversation.add_reply("", "I need a clock.", (call,))
    conversation.add_result(call, "noon")
    assert conversation.request().messages[1:] == (
        Message("user", "What time is it?"),
        Message("assistant", "", tool_calls=(call,), reasoning="I need a clock."),
        Message("tool", "noon", tool_call_id="c1"),
    )
    conversation.remove_last()
    assert conversation.messages == (Message("system", "Be brief."),)


def test_the_last_reasoning_is_shown_and_the_mode_is_set(conversation: Conversation) -> None:
    assert conversation.execute("/reasoning") == "The last reply has no reasoning."
    conversation.ask("Hello")
    conversation.add_reply("Hi.", "A greeting.")
    assert conversation.execute("/reasoning") == "A greeting."
    assert conversation.execute("/reasoning show") == "reasoning: show"
    assert conversation.reasoning_mode == "show"
    assert conversation.execute("/reasoning loud") == "/reasoning: must be one of show, fold, hide, not 'loud'"
    assert conversation.reasoning_mode == "show"
