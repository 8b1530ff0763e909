"""The messages, parameters and slash commands of a conversation."""

from pathlib import Path

import pytest

from cli.client.chat_chunk import message_body
from cli.terminal.conversation import COMMANDS, HELP, Conversation, command_of
from protocol.bounds import MAX_IMAGE_BYTES
from protocol.request import ImagePlace, Limits, Message, Sampling, ToolCall
from tests.gateway.images.files import PNG, data_url, picture


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


def test_images_go_with_the_next_message_and_leave_with_it(conversation: Conversation, tmp_path: Path) -> None:
    files = [tmp_path / "a b.png", tmp_path / "c.jpg"]
    files[0].write_bytes(PNG)
    files[1].write_bytes(picture("jpeg", 40, 30))
    assert conversation.execute(f"/image {files[0]}") == f"The next message has {files[0]}, 5 x 3 pixels."
    first = conversation.ask("What?")
    assert first.messages[-1] == Message("user", "What?", images=(ImagePlace(0, 0),))
    assert [each.data for each in first.images] == [PNG]
    conversation.add_reply("A dog.")
    conversation.execute(f"/image {files[1]}")
    second = conversation.ask("And?")
    assert [each.images for each in second.messages] == [(), (ImagePlace(0, 0),), (), (ImagePlace(1, 0),)]
    assert [each.format for each in second.images] == ["png", "jpeg"]
    (_, sent, _, _) = (message_body(each, second.images) for each in second.messages)
    assert sent["content"] == [
        {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "auto"}},
        {"type": "text", "text": "What?"},
    ]
    conversation.remove_last()
    conversation.execute(f"/image {files[1]}")
    assert conversation.execute("/image") == "The next message has no image."
    assert conversation.ask("Well?").images == first.images
    conversation.execute("/clear")
    assert conversation.ask("Hello").images == ()


def test_files_that_are_no_images_are_refused(conversation: Conversation, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg/>")
    assert "not a PNG, JPEG, WebP or GIF file" in conversation.execute(f"/image {tmp_path / 'a.svg'}")
    assert "No such file" in conversation.execute(f"/image {tmp_path / 'none.png'}")
    (tmp_path / "large.png").write_bytes(PNG + bytes(MAX_IMAGE_BYTES - len(PNG)))
    conversation.add_image(str(tmp_path / "large.png"))
    assert f"may have {MAX_IMAGE_BYTES} bytes" in conversation.execute(f"/image {tmp_path / 'large.png'}")
    (tmp_path / "large.png").write_bytes(bytes(MAX_IMAGE_BYTES + 1))
    assert f"over {MAX_IMAGE_BYTES} bytes" in conversation.execute(f"/image {tmp_path / 'large.png'}")
