"""The vision tower on MLX against plain numpy, in parts of any size."""

from collections.abc import Mapping
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vision_tower import NumpyTower
from tests.workers.mlx.vision.random_towers import random_image, random_parameters
from workers.engine.runner import NotFiniteError
from workers.mlx.vision.encoder import MAX_PATCHES, MlxImageEncoding, MlxPartSize, MlxVisionEncoder
from workers.mlx.vision.loading import tower_of
from workers.precision import Dtype
from workers.vision.config import Merger, Mix, VisionConfig
from workers.vision.patches import ImagePatches

QWEN_MERGER = Merger("concat", "layer", True, 1e-6, 32, "gelu", True)
QWEN3 = VisionConfig(
    family="qwen3_vl",
    patch_values=24,
    layers=3,
    hidden=16,
    heads=2,
    head_dim=8,
    mlp=20,
    norm="layer",
    eps=1e-6,
    activation="gelu_tanh",
    gated=False,
    biases=True,
    scale=8**-0.5,
    group=4,
    merger=QWEN_MERGER,
    output=12,
    rope_theta=10000.0,
    table=(5, 5),
    table_kind="interpolated",
    taps=(0, 2),
    tap_merger=replace(QWEN_MERGER, norm_each=False),
    mrope=(4, 2, 2),
    mrope_interleaved=True,
)
CONFIGS = {
    "gemma3": replace(
        QWEN3,
        family="gemma3",
        rope_theta=0.0,
        table=(6, 6),
        table_kind="fixed",
        taps=(),
        tap_merger=None,
        last_norm=True,
        merger=Merger("mean", "rms", False, 1e-6, 0, None, False),
    ),
    "gemma4": replace(
        QWEN3,
        family="gemma4",
        norm="rms",
        gated=True,
        biases=False,
        scale=1.0,
        qk_norm=True,
        value_norm=True,
        sandwich=True,
        columns_first=True,
        clipped=True,
        rope_theta=100.0,
        table=(8, 8),
        table_kind="axes",
        standardize=True,
        taps=(),
        tap_merger=None,
        merger=Merger("mean", "rms", False, 1e-6, 0, None, False, scale=4.0),
    ),
    "glm4v": replace(
        QWEN3,
        family="glm4v",
        norm="rms",
        activation="silu",
        gated=True,
        biases=False,
        patch_bias=True,
        patch_norm="rms",
        last_norm=True,
        table_kind="bicubic",
        taps=(),
        tap_merger=None,
        merger=Merger(
            "concat",
            None,
            False,
            1e-5,
            20,
            "silu",
            False,
            mixes=(Mix(12, bias=True), Mix(12, norm="layer", activation="gelu")),
            gated=True,
        ),
    ),
    "llava": replace(
        QWEN3,
        family="llava",
        placed_norm="layer",
        extra=True,
        rope_theta=0.0,
        table=(8, 8),
        table_kind="fixed",
        taps=(),
        tap_merger=None,
    ),
    "no_layers": replace(
        QWEN3,
        family="gemma4_unified",
        layers=0,
        values_norm="layer",
        patch_norm="layer",
        placed_norm="layer",
        biases=False,
        patch_bias=True,
        rope_theta=0.0,
        table=(8, 8),
        table_kind="axes",
        taps=(),
        tap_merger=None,
        merger=Merger("concat", "rms", False, 1e-6, 0, None, False),
    ),
    "pixtral": replace(
        QWEN3,
        family="pixtral",
        norm="rms",
        gated=True,
        biases=False,
        placed_norm="rms",
        rope_alternates=True,
        table=None,
        taps=(),
        tap_merger=None,
        merger=Merger("concat", "rms", True, 1e-5, 12, "gelu", False, mixes=(Mix(16),)),
    ),
    "lfm2_vl": replace(
        QWEN3,
        family="lfm2_vl",
        activation="gelu",
        rope_theta=0.0,
        table=(3, 4),
        table_kind="resized",
        last_norm=True,
        taps=(),
        tap_merger=None,
        merger=Merger("concat", "layer", False, 1e-5, 24, "gelu", True),
    ),
    "qwen2_5_vl": replace(
        QWEN3,
        family="qwen2_5_vl",
        norm="rms",
        activation="silu",
        gated=True,
        table=None,
        full_layers=frozenset({1}),
        taps=(),
        tap_merger=None,
        merger=replace(QWEN_MERGER, norm="rms"),
    ),
    "qwen3_vl": QWEN3,
    "smolvlm": replace(
        QWEN3,
        family="smolvlm",
        activation="quick_gelu",
        rope_theta=0.0,
        table=(6, 6),
        table_kind="fixed",
        last_norm=True,
        taps=(),
        tap_merger=None,
        merger=Merger("concat", None, False, 1e-6, 0, None, False),
    ),
}
WHOLE, SMALL = MlxPartSize(1024, 1e12), MlxPartSize(8, 1.0)


def encoder_of(
    config: VisionConfig,
    parameters: Mapping[str, NDArray[np.float32]],
    size: MlxPartSize = WHOLE,
    dtype: Dtype = "float32",
) -> MlxVisionEncoder:
    with mx.stream(mx.cpu):
        loaded = replace(tower_of(config, parameters, dtype, mx.Device(mx.cpu)), size=size)
    return MlxVisionEncoder(loaded, lambda: mx.stream(mx.cpu))


def image_of(config: VisionConfig, tokens: tuple[int, int] = (2, 3), seed: int = 0) -> ImagePatches:
    return random_image(config, tokens, window=2 if config.full_layers is not None else 0, seed=seed)


def finished(encoding: MlxImageEncoding) -> NDArray[np.float32]:
    """The rows of an encoding after all of its parts."""
    ends = [encoding.advance() for _ in range(encoding.parts)]
    assert ends == [False] * (encoding.parts - 1) + [True]
    return encoding.rows()


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_rows_are_those_of_plain_numpy(family: str) -> None:
    config = CONFIGS[family]
    parameters, image = random_parameters(config), image_of(config)
    expected = NumpyTower(config, parameters).rows(image)
    for size in (WHOLE, SMALL):
        encoding = encoder_of(config, parameters, size).begin(image)
        rows = finished(encoding)
        assert rows.shape == (image.count, config.width)
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, expected, atol=2e-4)
        encoding.close()
    blocks = 3 + config.extra  # the row that is no patch lies behind three whole ones
    merges = 3 * (1 + len(config.taps))
    assert encoder_of(config, parameters, SMALL).begin(image).parts == blocks * (1 + 2 * config.layers) + merges


def test_rows_have_the_same_bits_beside_other_images() -> None:
    encoder = encoder_of(QWEN3, random_parameters(QWEN3), SMALL, "bfloat16")
    images = [image_of(QWEN3), image_of(QWEN3, (4, 2), seed=1)]
    alone = [finished(encoder.begin(image)) for image in images]
    together = [encoder.begin(image) for image in images]
    running = list(together)
    while running:
        running = [encoding for encoding in running if not encoding.advance()]
    for encoding, rows in zip(together, alone, strict=True):
        np.testing.assert_array_equal(encoding.rows(), rows)


def test_memory_counts_what_is_open() -> None:
    parameters = random_parameters(QWEN3)
    encoder = encoder_of(QWEN3, parameters, SMALL, "bfloat16")
    weights = 2 * sum(array.size for name, array in parameters.items() if name != "positions.weight")
    assert encoder.memory() == {"vision_weights": weights, "vision_buffers": 0}
    encoding = encoder.begin(image_of(QWEN3))
    encoding.advance()
    assert encoder.memory()["vision_buffers"] > 24 * 16 * 4
    encoding.close()
    encoding.close()
    assert encoder.memory()["vision_buffers"] == 0


def test_images_that_the_tower_cannot_take_are_refused() -> None:
    encoder = encoder_of(QWEN3, random_parameters(QWEN3))
    image = image_of(QWEN3)
    with pytest.raises(ValueError, match="patches: 24 for 7 tokens of 4"):
        encoder.begin(replace(image, tokens=(1, 7)))
    with pytest.raises(ValueError, match=r"values: \(23,\) of a patch, the tower takes 24"):
        encoder.begin(replace(image, values=image.values[:, 1:]))
    many = MAX_PATCHES + 4
    with pytest.raises(ValueError, match=f"patches: {many} for {many // 4} tokens"):
        encoder.begin(replace(image, values=np.zeros((many, 24), np.float32), tokens=(1, many // 4)))
    windowed = CONFIGS["qwen2_5_vl"]
    with pytest.raises(ValueError, match="windows"):
        encoder_of(windowed, random_parameters(windowed)).begin(replace(image_of(windowed), windows=None))


def test_rows_before_the_last_part_and_rows_that_are_not_finite_are_refused() -> None:
    parameters = random_parameters(QWEN3)
    encoding = encoder_of(QWEN3, parameters).begin(image_of(QWEN3))
    with pytest.raises(ValueError, match="1 are not computed"):
        encoding.rows()
    assert encoding.advance()
    with pytest.raises(ValueError, match="all are computed"):
        encoding.advance()
    parameters["merger.down.bias"][3] = np.nan
    encoding = encoder_of(QWEN3, parameters).begin(image_of(QWEN3))
    encoding.advance()
    with pytest.raises(NotFiniteError):
        encoding.rows()
