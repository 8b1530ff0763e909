"""Digests of prompts: what has a common beginning has common digests, within a tenant."""

import hashlib
import string
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.bounds import MAX_FRAME_BYTES, MAX_PREFIX_DIGESTS
from protocol.prefix_digests import BOUNDARIES, FIRST_BYTES, STEPS, PrefixDigests, answer_begins
from protocol.request import (
    ChatInput,
    Image,
    ImageDetail,
    ImagePlace,
    InfillInput,
    Input,
    Message,
    TextInput,
    TokensInput,
    ToolCall,
)

TEXTS = st.text(string.ascii_letters + "é€😀\ud800", max_size=3000)


def digests(source: Input, tenant: str = "") -> tuple[int, ...]:
    return PrefixDigests.of(source, tenant).digests()


def common(one: Input, other: Input) -> int:
    pairs = zip(digests(one), digests(other), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(digests(one)), len(digests(other))))


def test_boundaries_are_an_eighth_apart_and_reach_beyond_any_frame() -> None:
    assert BOUNDARIES[0] == FIRST_BYTES
    assert len(BOUNDARIES) == MAX_PREFIX_DIGESTS
    assert BOUNDARIES[-1] > MAX_FRAME_BYTES
    for one, other in pairwise(BOUNDARIES):
        assert 0 < other - one <= max(FIRST_BYTES, one / STEPS)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (127, 0), (128, 1), (129, 1), (1024, 8), (1152, 9), (1151, 8)])
def test_a_digest_is_there_when_its_boundary_is_reached(size: int, count: int) -> None:
    assert len(digests(TextInput("x" * size))) == count


def test_there_are_no_more_digests_than_a_frame_may_have() -> None:
    grown = PrefixDigests("")
    for _ in range(40):
        grown.add_text("x" * (1 << 20))
    assert len(grown.digests()) == MAX_PREFIX_DIGESTS
    assert grown.size == 40 << 20


@given(TEXTS, TEXTS, TEXTS)
def test_texts_have_the_digests_of_what_they_have_in_common_and_no_others(start: str, one: str, other: str) -> None:
    first, second = TextInput(start + one), TextInput(start + "1" + other)
    shared = len(start.encode(errors="surrogatepass"))
    more = first.text.encode(errors="surrogatepass")[shared : shared + 1] == b"1"
    assert not more
    assert common(first, second) == sum(boundary <= shared for boundary in BOUNDARIES)


@given(TEXTS, st.lists(st.integers(0, 3000), max_size=4))
def test_digests_do_not_depend_on_the_parts_in_which_text_comes(text: str, cuts: list[int]) -> None:
    grown = PrefixDigests("t")
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in pairwise(bounds):
        grown.add_text(text[begin:end])
    assert grown.digests() == digests(TextInput(text), "t")


def test_digests_of_tenants_have_nothing_in_common() -> None:
    text = TextInput("x" * 5000)
    tenants = ["", "a", "b", "a:salt", "f" * 32 + ":" + "e" * 32]
    seen = [each for tenant in tenants for each in digests(text, tenant)]
    assert len(set(seen)) == len(seen) == len(tenants) * len(digests(text))


def test_kinds_of_prompts_with_other_bytes_differ() -> None:
    assert not common(TextInput("x" * 500), ChatInput((Message("user", "x" * 500),)))
    assert common(TokensInput(tuple(range(100))), TokensInput((*range(64), 1))) == 2
    assert common(InfillInput("x" * 300, "y"), InfillInput("x" * 300, "z")) == 2


@given(st.lists(TEXTS, min_size=1, max_size=3), TEXTS, TEXTS)
def test_the_next_turn_of_a_chat_begins_with_this_one_and_its_answer(turns: list[str], answer: str, more: str) -> None:
    messages = tuple(Message("user", text) for text in turns)
    this = ChatInput(messages)
    answered = PrefixDigests.of(this, "t")
    answered.add_text(answer_begins(this) + answer)
    following = ChatInput((*messages, Message("assistant", answer), Message("user", more)))
    held = answered.digests()
    assert digests(following, "t")[: len(held)] == held


@pytest.mark.parametrize(
    "other",
    [
        Message("user", "x" * 200, name="n"),
        Message("system", "x" * 200),
        Message("user", "x" * 200, reasoning="r"),
        Message("user", "x" * 200, tool_call_id="c"),
        Message("user", "x" * 200, tool_calls=(ToolCall("i", "f", "{}"),)),
    ],
)
def test_whatever_is_different_in_a_message_changes_the_digests_after_it(other: Message) -> None:
    after = Message("user", "y" * 4000)
    one, two = ChatInput((Message("user", "x" * 200), after)), ChatInput((other, after))
    assert digests(one)[-1] != digests(two)[-1]


def test_tools_and_options_come_first() -> None:
    chat = ChatInput((Message("user", "x" * 1000),))
    assert common(chat, ChatInput(chat.messages, tools_json="[{}]")) == 0


def test_the_digests_of_a_part_are_those_up_to_its_size() -> None:
    whole = PrefixDigests.of(TextInput("x" * 2000), "")
    assert whole.digests(1023) == whole.digests()[:7]
    assert whole.digests(1024) == whole.digests()[:8]
    assert whole.digests(0) == ()


def shown(
    data: bytes, at: int = 5, *, digest: bytes = b"", detail: ImageDetail = "auto", text: str = "look at this" * 30
) -> Input:
    image = Image("png", 560, 560, data, detail, digest=digest)
    return ChatInput((Message("user", text, images=(ImagePlace(0, at),)),), images=(image,))


def test_images_differ_by_content_detail_and_place_and_weigh_as_much_as_their_tokens() -> None:
    one = shown(b"one")
    assert digests(one) == digests(shown(b"one", digest=hashlib.blake2b(b"one", digest_size=16).digest()))
    assert PrefixDigests.of(one, "").size > 400 * 4
    for other in (shown(b"two"), shown(b"one", detail="low"), shown(b"one", at=6)):
        assert common(one, other) <= 1
    assert common(shown(b"one", at=300), shown(b"two", at=300)) >= 2
