"""Images in chats: how they get into the prompt, and what is refused before it is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES_PIXELS
from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Image, ImagePlace, Limits, Message, Pin, ToolCall
from tests.workers.process.harness.gateway_peer import submit
from workers.load_options import SparseSettings
from workers.local_model import LocalModel
from workers.process.prompts.cost import input_cost, tokenize_cost
from workers.process.prompts.images.image_prompts import ImagePrompts
from workers.process.prompts.images.patch_memory import PatchMemory
from workers.process.prompts.prompt_builder import PromptBuilder, TokenizedPrompt
from workers.process.prompts.prompt_query import answer_query
from workers.process.prompts.refusal import PromptCancelled, PromptRefused
from workers.process.prompts.tokenize_queue import MAX_INLINE_COST
from workers.scripted.images import GROUP, IMAGE_TOKEN, PATCH_VALUES, PLACEHOLDER, ScriptedImageProcessor
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.template import ChatTemplate

QWEN = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}(<|image|>){% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
"""Takes texts and parts, as the templates of Qwen's vision models do."""
SMOLVLM = (
    "{% for message in messages %}[{{ message.role }}]{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image|>{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
"""Takes parts alone: a text would be lost."""
TEXTS = "{% for message in messages %}[{{ message.role }}]{{ message.content + '' }}{% endfor %}"
TEMPLATES = {"parts": (QWEN, "(", ")"), "parts-alone": (SMOLVLM, "", ""), "texts": (TEXTS, "", "")}
CAT = Image("png", 100, 60, b"\x89PNGcat", field="messages[0].content[1]")
"""8 tokens."""
DOT = Image("png", 5, 5, b"\x89PNGdot", field="messages[0].content[2]")


def builder(template: str = "", context: int = 4096, **options: Any) -> PromptBuilder:
    tokenizer = ByteTokenizer(PLACEHOLDER, IMAGE_TOKEN)
    if template:
        tokenizer.chat = ChatTemplate({"default": template})  # type: ignore[assignment]
    return PromptBuilder(tokenizer, context, images=ScriptedImageProcessor(**options))


def chat(text: str, *places: tuple[int, int], images: tuple[Image, ...] = (CAT,), **fields: Any) -> ChatInput:
    message = Message("user", text, images=tuple(ImagePlace(*place) for place in places))
    return ChatInput((message,), images=images, **fields)


def build(source: ChatInput, template: str = "") -> TokenizedPrompt:
    return builder(template).build(submit(1, source))


def shown(prompt: TokenizedPrompt) -> str:
    """The prompt, with a star for each row."""
    return bytes(ord("*") if token < 0 else token for token in prompt.tokens).decode()


def refused(source: ChatInput, by: PromptBuilder | None = None, **limits: Any) -> PromptRefused:
    with pytest.raises(PromptRefused) as error:
        (by or builder()).build(submit(1, source, **limits))
    return error.value


@pytest.mark.parametrize("name", TEMPLATES)
def test_images_are_where_they_are_in_the_message(name: str) -> None:
    template, before, after = TEMPLATES[name]
    cat, dot = f"{before}{'*' * 8}{after}", f"{before}*{after}"
    prompt = build(chat("what is it?", (0, 4), (1, 4), (0, 11), images=(CAT, DOT)), template)
    assert shown(prompt) == f"[user]what{cat}{dot} is it?{cat}"
    assert prompt.images is not None
    first = len("[user]what" + before)
    starts = [first, first + len(cat), shown(prompt).rindex("*") - 7]
    assert [(image.start, image.field) for image in prompt.images.images] == [
        (start, image.field) for start, image in zip(starts, (CAT, DOT, CAT), strict=True)
    ]
    assert all(prompt.tokens[image.start : image.end] == image.numbers for image in prompt.images.images)
    alone = build(ChatInput((Message("user", "only text"),)), template)
    assert (shown(alone), alone.images) == ("[user]only text", None)


def test_positions_have_three_axes_where_the_model_has() -> None:
    prompt = build(chat("see it", (0, 4)), TEXTS)
    assert prompt.images is not None
    assert prompt.images.axes is not None
    assert prompt.images.axes[:, 9:13].tolist() == [[9, 10, 10, 10], [9, 10, 10, 10], [9, 10, 11, 12]]
    # 2 rows of 4 tokens take 4 positions.
    assert prompt.images.answer == len(prompt.tokens) - 8 + 4
    plain = builder(TEXTS, mrope=False).build(submit(1, chat("see it", (0, 4))))
    assert plain.images is not None
    assert (plain.images.axes, plain.images.answer, plain.tokens) == (None, None, prompt.tokens)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", [PLACEHOLDER, f"a{PLACEHOLDER}{PLACEHOLDER}b", "<|image", "|image|>", "|>"])
def test_the_text_of_a_message_is_never_taken_for_an_image(name: str, text: str) -> None:
    template, before, after = TEMPLATES[name]
    for at in (0, len(text)):
        prompt = build(chat(text, (0, at)), template)
        image = f"{before}{'*' * 8}{after}"
        assert shown(prompt) == f"[user]{text[:at]}{image}{text[at:]}"


class Unguarded(ByteTokenizer):
    """A tokenizer that takes control tokens in messages for such, as with --parse-special."""

    def mark_control_tokens(self, values: Any) -> tuple[Any, str]:
        return values, ""


def test_a_text_that_the_tokenizer_takes_for_image_tokens_is_refused() -> None:
    by = PromptBuilder(Unguarded(PLACEHOLDER, IMAGE_TOKEN), 4096, images=ScriptedImageProcessor())
    assert by.build(submit(1, chat("see it", (0, 4)))).images is not None
    for text in (PLACEHOLDER, PLACEHOLDER * 8):
        error = refused(chat(text, (0, 0)), by)
        assert (error.code, error.field) == (ErrorCode.INVALID, CAT.field)
        assert "leave the text of image tokens out" in str(error)


def test_a_template_that_loses_an_image_is_refused() -> None:
    lossy = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    messages = (Message("system", "x", images=(ImagePlace(0, 0),)), Message("user", "y"))
    error = refused(ChatInput(messages, images=(CAT,)), builder(lossy))
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "messages")
    assert "writes 0 images of 1" in str(error)


def test_an_image_beside_tool_calls_is_in_the_text() -> None:
    """Templates join what a message has beside its calls to other texts."""
    calls = "{{ message.tool_calls | tojson if message.tool_calls }};{% endfor %}"
    call = ToolCall("call_1", "look", "{}")
    messages = (
        Message("assistant", "see", tool_calls=(call,), images=(ImagePlace(0, 3),)),
        Message("tool", "it is", tool_call_id="call_1", images=(ImagePlace(0, 0),)),
    )
    prompt = builder(QWEN.removesuffix("{% endfor %}") + calls).build(submit(1, ChatInput(messages, images=(CAT,))))
    assert shown(prompt).startswith(f"[assistant]see{'*' * 8}[")
    assert shown(prompt).endswith(f"[tool]({'*' * 8})it is;")


@pytest.mark.parametrize(
    ("source", "code", "field", "problem"),
    [
        (chat("x", (0, 0), images=(replace(CAT, data=b"no"),)), ErrorCode.INVALID, CAT.field, "no png image"),
        (chat("x", (1, 0)), ErrorCode.INVALID, CAT.field, "a place has image 1 of 1"),
        (chat("x", (0, 2)), ErrorCode.INVALID, CAT.field, "a place is at character 2"),
        (chat("xy", (0, 2), (0, 1)), ErrorCode.INVALID, CAT.field, "a place is at character 1"),
        (chat("x", (0, 0), images=(CAT, DOT)), ErrorCode.INVALID, CAT.field, "an image has no place"),
        (chat("x", (0, 0), images=()), ErrorCode.INVALID, "messages", "a place has image 0 of 0"),
        (chat("x", *[(0, 0)] * 64 + [(0, 0)]), ErrorCode.INVALID, CAT.field, "more than 64 places"),
        (chat("x", (0, 0), images=(replace(CAT, width=16000, height=2501),)), ErrorCode.INVALID, CAT.field, "pixels"),
    ],
    ids=["broken", "no-image", "beyond", "order", "unplaced", "none", "places", "pixels"],
)
def test_what_cannot_be_an_image_is_refused(source: ChatInput, code: ErrorCode, field: str, problem: str) -> None:
    error = refused(source)
    assert (error.code, error.field) == (code, field)
    assert problem in str(error)


def test_all_images_together_are_within_the_bound_of_bytes() -> None:
    half = CAT.data.ljust(MAX_IMAGE_BYTES // 2, b"x")
    images = (replace(CAT, data=half), replace(DOT, data=half))
    assert not chat("x", (0, 0), (1, 0), images=images).image_problem
    more = (images[0], replace(DOT, data=half + b"x"))
    assert f"{MAX_IMAGE_BYTES + 1} bytes together" in chat("x", (0, 0), (1, 0), images=more).image_problem


def test_all_images_together_are_within_the_bound_of_pixels() -> None:
    images = (replace(CAT, width=8_000, height=5_000),) * (MAX_IMAGES_PIXELS // 40_000_000)
    places = [(index, 0) for index in range(5)]
    assert not chat("x", *places[:4], images=images).image_problem
    assert "pixels together" in chat("x", *places, images=(*images, DOT)).image_problem


def test_a_model_without_a_vision_tower_refuses_images_by_name() -> None:
    error = refused(chat("x", (0, 0)), PromptBuilder(ByteTokenizer(), 4096))
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, CAT.field)


def test_images_that_leave_no_room_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedImageProcessor, "prepare", None)
    error = refused(chat("", (0, 0), (1, 0), images=(CAT, DOT)), builder(context=9))
    assert (error.code, error.field) == (ErrorCode.CONTEXT, DOT.field)
    error = refused(chat("", (0, 0)), builder(context=8))
    assert (error.code, error.field) == (ErrorCode.CONTEXT, CAT.field)


def test_an_image_of_more_patches_than_the_tower_takes_is_refused_before_it_is_decoded() -> None:
    source = ScriptedImageProcessor()
    images, low = ImagePrompts(source, 4096), replace(CAT, detail="low")
    source.max_patches = 8 * GROUP
    assert images.prepare(chat("", (0, 0), (1, 0), images=(CAT, DOT)), lambda: True) is not None
    source.max_patches -= 1
    source.prepare = None  # type: ignore[method-assign,assignment]
    for ask in (images.outline, lambda asked: images.prepare(asked, lambda: True)):
        with pytest.raises(PromptRefused) as error:
            ask(chat("", (0, 0), (1, 0), images=(DOT, CAT)))
        assert (error.value.code, error.value.field) == (ErrorCode.INVALID, CAT.field)
        assert str(error.value) == "an image of 32 patches, the model takes 31 on its device: make it smaller"
    assert images.outline(chat("", (0, 0), images=(low,))) is not None


def test_sparse_prefill_is_refused_beside_images_by_name() -> None:
    error = refused(chat("x", (0, 0)), sparse_prefill=True)
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "sparse_prefill")
    sparse = PromptBuilder(
        ByteTokenizer(PLACEHOLDER, IMAGE_TOKEN), 4096, sparse=SparseSettings(tokens=1), images=ScriptedImageProcessor()
    )
    assert sparse.build(submit(1, chat("x", (0, 0)))).sparse is None
    error = refused(chat("x", (0, 0)), sparse, sparse_prefill=True)
    assert (error.code, error.field, "leave the images out" in str(error)) == (
        ErrorCode.UNSUPPORTED,
        "sparse_prefill",
        True,
    )


def test_queries_count_the_tokens_of_images_without_their_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    source = chat("see it", (0, 4))
    prompt = build(source, TEXTS)
    monkeypatch.setattr(ScriptedImageProcessor, "prepare", None)
    counted = answer_query(builder(TEXTS), Tokenize(1, "r", source, "count"))
    listed = answer_query(builder(TEXTS), Tokenize(1, "r", source, "tokens"))
    assert counted.count == listed.count == len(prompt.tokens)
    assert listed.tokens == tuple(IMAGE_TOKEN if token < 0 else token for token in prompt.tokens)
    text = answer_query(builder(TEXTS), Tokenize(1, "r", chat(PLACEHOLDER, (0, 0)), "text"))
    assert text.text == f"[user]{PLACEHOLDER}{PLACEHOLDER}"
    failed = answer_query(builder(TEXTS), Tokenize(1, "r", chat("x", (0, 0), images=(replace(CAT, data=b"no"),))))
    assert (failed.code, failed.field) == (ErrorCode.INVALID, CAT.field)


def test_pins_count_the_tokens_of_images() -> None:
    source = chat("see it", (0, 4), pins=(Pin(0, 60, 2), Pin(0, 60, 6)))
    pins = build(source, TEXTS).pins
    assert [pin.rows for pin in pins] == [len("[user]se"), len("[user]see ") + 8 + len("it")]


def test_preparing_images_costs_too_much_for_the_event_loop() -> None:
    small = ChatInput((Message("user", "x"),))
    assert input_cost(small) < MAX_INLINE_COST < tokenize_cost(submit(1, chat("x", (0, 0), images=(DOT,))))
    large = replace(CAT, width=1000, height=1000)
    assert input_cost(chat("x", (0, 0), images=(large,))) - input_cost(chat("x", (0, 0), images=(DOT,))) == 40_000 - 1


def test_a_cancelled_request_prepares_no_further_image() -> None:
    answers = iter((True, False))
    prepared: list[Image] = []
    source = ScriptedImageProcessor()
    prepare: Callable[[Image], Any] = source.prepare
    source.prepare = lambda image: prepared.append(image) or prepare(image)  # type: ignore[method-assign,func-returns-value]
    images = ImagePrompts(source, 4096)
    with pytest.raises(PromptCancelled):
        images.prepare(chat("x", (0, 0), (1, 0), images=(CAT, DOT)), lambda: next(answers))
    assert prepared == [CAT]


def test_the_patches_of_all_prompts_are_within_a_bound() -> None:
    size = 8 * GROUP * PATCH_VALUES * 4 + len(CAT.data)
    memory = PatchMemory(2 * size)
    images = ImagePrompts(ScriptedImageProcessor(), 4096, memory)
    held = [images.prepare(chat(str(at), (0, 0)), lambda: True) for at in range(2)]
    assert memory.used == 2 * size
    with pytest.raises(PromptRefused) as error:
        images.prepare(chat("x", (0, 0), images=(DOT,)), lambda: True)
    assert (error.value.code, error.value.retry_after_s) == (ErrorCode.OVERLOADED, 1)
    held.pop()
    several = images.prepare(chat("x", (0, 0), (0, 0), (0, 1)), lambda: True)
    assert several is not None, "an image counts once, in however many places"
    assert [each is several.held[0] for each in several.held] == [True, True, True]
    assert memory.used == 2 * size
    del several
    assert images.prepare(chat("x", (0, 0), images=(DOT,)), lambda: True) is not None
    held.clear()
    large = replace(CAT, width=256, height=256)
    alone = images.prepare(chat("x", (0, 0), images=(large,)), lambda: True)
    assert alone is not None
    assert memory.used == 8 * (size - len(CAT.data)) + len(CAT.data), "a prompt that is alone may take more"
    patches = alone.held[0].part(0)
    assert patches is not None
    assert np.isfinite(patches.values).all()


def test_a_file_is_prepared_once_for_the_requests_of_a_tenant() -> None:
    prepared: list[Image] = []
    source = ScriptedImageProcessor()
    prepare: Callable[[Image], Any] = source.prepare
    source.prepare = lambda image: prepared.append(image) or prepare(image)  # type: ignore[method-assign,func-returns-value]
    size = 8 * GROUP * PATCH_VALUES * 4
    images = ImagePrompts(source, 4096, recent_bytes=size)

    def ask(tenant: str | None, *given: Image) -> int:
        before = len(prepared)
        places = [(at, 0) for at in range(len(given))]
        assert images.prepare(chat("x", *places, images=given), lambda: True, tenant) is not None
        return len(prepared) - before

    assert [ask("a", CAT), ask("a", CAT), ask("b", CAT), ask("a", CAT)] == [1, 0, 1, 1], "one fits, of one tenant"
    assert ask("a", replace(CAT, detail="low")) == 1
    assert [ask(None, CAT), ask(None, CAT)] == [1, 1], "of a query nothing is kept"
    memory = PatchMemory(size)
    images = ImagePrompts(source, 4096, memory)
    assert ask("a", CAT) == 1
    assert memory.used == size
    assert ask("a", DOT) == 1, "what is kept gives way"
    assert memory.used == size // 8


def test_a_model_in_process_takes_images() -> None:
    with LocalModel.load("", backend="scripted", scripted={"images": True}) as model:
        one = model.generate(chat("see it", (0, 4)), limits=Limits(max_tokens=4))
        two = model.generate(
            chat("see it", (0, 4), images=(replace(CAT, data=b"\x89PNGdog"),)), limits=Limits(max_tokens=4)
        )
        assert one.tokens != two.tokens
