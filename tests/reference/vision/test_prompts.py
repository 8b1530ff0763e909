"""Prompts of chats with images alone, with several images, and with texts between them, for each family: those of
transformers' chat templates."""

from pathlib import Path
from typing import Any

import pytest

from protocol.request import ChatInput, Image, ImagePlace, Message
from tests.reference.vision.test_vision import FAMILIES, as_file, picture
from tests.vision_checkpoints import make_vision_description
from tests.workers.process.harness.gateway_peer import submit
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.text.checkpoint_tokenizer import CheckpointTokenizer
from workers.vision.processor import ImageProcessor

pytestmark = pytest.mark.reference

IMAGES = (as_file(picture(60, 44)), as_file(picture(1, 1, 1)))
CHATS: tuple[tuple[str | int, ...], ...] = ((0,), (1, 0), ("What is in ", 0, " and in ", 1, " of these?"))
"""Texts, and the numbers of images."""


def message_of(parts: tuple[str | int, ...]) -> tuple[Message, list[dict[str, str]]]:
    """The message, and the content that templates take."""
    text, places, content = "", [], list[dict[str, str]]()
    for part in parts:
        if isinstance(part, int):
            places.append(ImagePlace(part, len(text)))
            content.append({"type": "image"})
        else:
            text += part
            content.append({"type": "text", "text": part})
    return Message("user", text, images=tuple(places)), content


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    pytest.importorskip("torch")
    from transformers import AutoTokenizer

    path = make_vision_description(tmp_path, family)
    own, tokenizer = ImageProcessor.of(path), CheckpointTokenizer.from_dir(path)
    assert own is not None
    builder, theirs = PromptBuilder(tokenizer, 4096, images=own), AutoTokenizer.from_pretrained(path)
    for parts in CHATS:
        message, content = message_of(parts)
        chosen = [part for part in parts if isinstance(part, int)]
        images: tuple[Image, ...] = tuple(IMAGES[: 1 + max(chosen)])
        prompt = builder.build(submit(1, ChatInput((message,), images=images)))
        chat: Any = [{"role": "user", "content": content}]
        before, *behind = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).split(
            own.placeholder
        )
        files = own.among(images, len(chosen))
        texts = [own.prepare(files[number]).text for number in chosen]
        expected = before + "".join(text + rest for text, rest in zip(texts, behind, strict=True))
        ids = theirs(expected, add_special_tokens=False)["input_ids"]
        assert [own.image_token if token < 0 else token for token in prompt.tokens] == ids
