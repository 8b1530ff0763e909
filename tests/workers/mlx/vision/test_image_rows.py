"""Rows of images in language models on MLX: positions in three axes, deep stack, attention within images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.reference.layers.gemma4_layers import ALL as GEMMA4
from tests.workers.embeddings_gate import embedding_table, run_embeddings_gate
from tests.workers.mlx.conftest import Load
from tests.workers.mlx.vision.random_towers import random_image, random_parameters
from tests.workers.mlx.vision.test_encoder import CONFIGS, QWEN3, finished
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.mlx.vision.loading import UnreadTower
from workers.sampling.sample_spec import SampleSpec
from workers.vision.config import VisionConfig

BEFORE, IMAGE, AFTER = 9, 6, 12
"""Tokens of a prompt before its image, of the image, and behind it."""
LENGTH = BEFORE + IMAGE + AFTER
GREEDY = SampleSpec(Sampling(), LENGTH)
TEXT = tuple(int(token) for token in np.random.default_rng(3).integers(3, 500, LENGTH))
MODELS: dict[str, tuple[str, VisionConfig, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", replace(CONFIGS["gemma3"], bidirectional="all", mrope=()), {"sliding_window": 8}),
    "gemma4": (
        "gemma4_text",
        replace(CONFIGS["gemma4"], bidirectional="windowed", mrope=()),
        GEMMA4 | {"sliding_window": 8},
    ),
    "qwen2_5_vl": ("qwen2", replace(CONFIGS["qwen2_5_vl"], mrope=(4, 2, 2), mrope_interleaved=False), {}),
    "qwen3_5": ("qwen3_5_text", replace(QWEN3, taps=(), tap_merger=None, mrope=(2, 1, 1)), {}),
    "qwen3_vl": ("qwen3", QWEN3, {}),
}


@pytest.fixture
def load_with(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that loads the language model of a family with a random tower, and without one."""

    def make(name: str, *, dtype: Any = "float32", **options: Any) -> tuple[Runner, Runner]:
        family, config, fields = MODELS[name]
        path = make_checkpoint(tmp_path / name, family, dtype=dtype, fields=fields, layers=4)
        config = replace(config, output=64)
        tower = UnreadTower(config, random_parameters(config), dtype)
        monkeypatch.setattr("workers.mlx.loading.parts.open_tower", lambda *_: tower)
        return load(path, dtype=dtype, **options), load(path, dtype=dtype, vision=False, **options)

    return make


def prompt_of(runner: Runner, config: VisionConfig, seed: int = 0) -> Chunk:
    """A prompt with an image in it, as one chunk."""
    assert runner.vision is not None
    image = random_image(config, (2, 3), window=2 if config.full_layers is not None else 0, seed=seed)
    embeddings = PromptEmbeddings(finished(runner.vision.begin(image)))  # type: ignore[arg-type]
    end = BEFORE + IMAGE
    ends = tuple(end if BEFORE <= at < end else at + 1 for at in range(LENGTH))
    places = [*range(BEFORE), *(BEFORE,) * IMAGE, *range(BEFORE + 3, BEFORE + 3 + AFTER)]
    axes = np.array([places] * 3, np.int32)
    axes[1, BEFORE:end] += np.repeat(np.arange(2), 3).astype(np.int32)
    axes[2, BEFORE:end] += np.tile(np.arange(3), 2).astype(np.int32)
    return Chunk(
        0,
        TEXT[:BEFORE] + embeddings.ids + TEXT[end:],
        0,
        0,
        embeddings,
        axes=axes if config.mrope else None,
        ends=None if config.bidirectional == "none" else ends,
    )


def parts_of(chunk: Chunk, slot: int, lengths: Sequence[int]) -> list[Chunk]:
    """The chunk divided into others, for another slot. Those of text have no axes: their positions are plain."""
    parts, at = [], 0
    for length in lengths:
        part = structs.replace(chunk.part(at, length), slot=slot)
        if chunk.axes is not None and at + length > BEFORE + IMAGE <= at:
            part = structs.replace(part, axes=None, position=int(chunk.axes[0, at]))
        parts.append(structs.replace(part, ends=None) if at >= BEFORE + IMAGE else part)
        at += length
    assert at == LENGTH
    return parts


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name != "qwen2_5_vl" else pytest.mark.exhaustive) for name in sorted(MODELS)],
)
def test_rows_are_exact_in_any_chunks_and_beside_others(name: str, load_with: Any) -> None:
    """Cold, behind a prefix, beside other slots, and row by row. Text has the bits that it has without a tower."""
    runner, plain = load_with(name)
    config = runner.vision._loaded.config
    chunk = prompt_of(runner, config)
    whole = runner.logits(chunk)
    assert runner.capabilities.embedding_width == config.width
    text = [each.logits(Chunk(1, TEXT, 0, 0)) for each in (runner, plain)]
    np.testing.assert_array_equal(*text)
    assert (whole[:BEFORE] == text[0][:BEFORE]).all()
    assert (whole[BEFORE:] != text[0][BEFORE:]).any(axis=1).all()
    divisions = [(BEFORE, IMAGE, 1, AFTER - 1), (4, BEFORE + IMAGE + 3 - 4, AFTER - 3), (BEFORE, IMAGE + 2, *(1,) * 10)]
    if not runner.capabilities.bidirectional_images:
        divisions += [(BEFORE + 2, 1, IMAGE, AFTER - 3), (1,) * LENGTH]
    for lengths in divisions:
        runner.reset(2)
        made = [runner.logits(part) for part in parts_of(chunk, 2, lengths)]
        np.testing.assert_array_equal(np.concatenate(made), whole)
    expected = [int(row.argmax()) for row in whole]
    runner.reset(0)
    runner.reset(2)
    runner.copy_prefix(1, 0, 0)
    both = [chunk, Chunk(2, TEXT[:20], 0, 0), *parts_of(structs.replace(chunk, slot=3), 3, (LENGTH,))]
    assert runner.prefill(both, [GREEDY] * 3) == [expected[-1], int(text[0][19].argmax()), expected[-1]]


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5", "qwen3_vl"])
def test_a_decode_row_behind_an_image_has_its_position(name: str, load_with: Any) -> None:
    """The steps of an answer, beside a slot without an image, are those of a prompt with the answer in it."""
    runner, _ = load_with(name, dtype="bfloat16")
    config = runner.vision._loaded.config
    chunk = prompt_of(runner, config)
    position = LENGTH if chunk.axes is None else int(chunk.axes[0, -1]) + 1
    tokens = runner.prefill([chunk, Chunk(1, TEXT, 0, 0)], [GREEDY] * 2)
    answers = [[token] for token in tokens]
    for step in range(4):
        rows = [
            DecodeRow(0, answers[0][-1], LENGTH + step, position + step, GREEDY),
            DecodeRow(1, answers[1][-1], LENGTH + step, LENGTH + step, GREEDY),
        ]
        for answer, token in zip(answers, runner.decode(rows), strict=True):
            answer.append(token)
    axes = None if chunk.axes is None else np.concatenate([chunk.axes, [[*range(position, position + 4)]] * 3], axis=1)
    ends = None if chunk.ends is None else (*chunk.ends, *range(LENGTH + 1, LENGTH + 5))
    again = structs.replace(chunk, slot=2, tokens=(*chunk.tokens, *answers[0][:4]), axes=axes, ends=ends)
    logits = runner.logits(again)
    assert [int(row.argmax()) for row in logits[LENGTH - 1 :]] == answers[0]


def last_row_seen(runner: Runner, chunk: Chunk) -> NDArray[np.bool_]:
    """Return which rows of the logits depend on the last row of the image."""
    assert isinstance(chunk.embeddings, PromptEmbeddings)
    before = runner.logits(chunk)
    rows = chunk.embeddings.rows.copy()
    rows[IMAGE - 1] += 1.0
    other = PromptEmbeddings(rows)
    tokens = chunk.tokens[:BEFORE] + other.ids + chunk.tokens[BEFORE + IMAGE :]
    after = runner.logits(structs.replace(chunk, tokens=tokens, embeddings=other))
    changed: NDArray[np.bool_] = (before != after).any(axis=1)
    return changed


def test_tokens_of_an_image_attend_to_its_later_ones(load_with: Any) -> None:
    runner, _ = load_with("gemma3")
    chunk = prompt_of(runner, runner.vision._loaded.config)
    expected = np.arange(LENGTH) >= BEFORE
    np.testing.assert_array_equal(last_row_seen(runner, chunk), expected)
    causal = structs.replace(chunk, ends=None)
    np.testing.assert_array_equal(last_row_seen(runner, causal)[: BEFORE + IMAGE - 1], False)


def test_deep_stack_columns_reach_their_layers(load_with: Any) -> None:
    """Each column changes the image's rows, and none of those before."""
    runner, _ = load_with("qwen3_vl")
    chunk = prompt_of(runner, runner.vision._loaded.config)
    assert isinstance(chunk.embeddings, PromptEmbeddings)
    whole = runner.logits(chunk)
    for column in range(3):
        rows = chunk.embeddings.rows.copy()
        rows[:, 64 * column : 64 * (column + 1)] *= 2
        other = PromptEmbeddings(rows)
        tokens = chunk.tokens[:BEFORE] + other.ids + chunk.tokens[BEFORE + IMAGE :]
        changed = (runner.logits(structs.replace(chunk, tokens=tokens, embeddings=other)) != whole).any(axis=1)
        np.testing.assert_array_equal(changed, np.arange(LENGTH) >= BEFORE)


def test_positions_that_the_model_does_not_have_are_refused(load_with: Any) -> None:
    qwen, plain = load_with("qwen3_vl")
    axes = np.zeros((3, 5), np.int32)
    for runner in (plain, load_with("gemma3")[0]):
        with pytest.raises(ValueError, match="axes: the model has positions in one axis"):
            runner.logits(Chunk(0, TEXT[:5], 0, 0, axes=axes))
    for wrong in (axes[:2], axes[:, :4], axes - 1):
        with pytest.raises(ValueError, match="axes: give 3 positions of each of 5 tokens, from 0 on"):
            qwen.logits(Chunk(0, TEXT[:5], 0, 0, axes=wrong))
    with pytest.raises(ValueError, match="ends: the model attends to earlier rows only"):
        qwen.logits(Chunk(0, TEXT[:5], 0, 0, ends=(1, 2, 3, 4, 5)))
    gemma = load_with("gemma3")[0]
    for ends in ((1, 2, 3, 4), (0, 2, 3, 4, 5), (1, 2, 6, 4, 5)):
        with pytest.raises(ValueError, match="ends: give 5, each behind its row and up to 5"):
            gemma.logits(Chunk(0, TEXT[:5], 0, 0, ends=ends))


@pytest.mark.exhaustive
def test_rows_of_requests_stand_for_those_of_the_table(tmp_path: Path, load_with: Any) -> None:
    """Beside a tower too, in a model that scales its embeddings."""
    runner, _ = load_with("gemma3", dtype="bfloat16", embeddings=True)
    run_embeddings_gate(runner, embedding_table(tmp_path / "gemma3"))
