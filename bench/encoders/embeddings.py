"""Embeddings a second of encoders on a CPU, beside transformers on torch as sentence-transformers calls it.

    python bench/encoders/embeddings.py [--shape minilm base] [--texts 128] [--rounds 3] [--threads 2] [--cache-dir DIR]

The shapes are MiniLM-L6 and BERT-base, with random weights, which Baton's own loader reads and packs. A text has 4 to
250 tokens. Baton computes calls of up to 64 of them, in the order in which they are. Torch gets them as `encode` of
sentence-transformers does: sorted by length, in padded batches of 32. Both pool the mean and normalize it. The subjects
take turns; the figures are medians of the rounds, and nothing else should run on the machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_cache_dir
from tests.workers.tiny_encoders import make_encoder
from workers.checkpoints.encoders.reading import read_encoder
from workers.engine.runner import Chunk
from workers.iree.encoder.runner import IreeEncoderRunner
from workers.load_options import LoadOptions
from workers.precision import Dtype, Quantize

VOCABULARY = 30522
SHAPES: Mapping[str, Mapping[str, int]] = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64},
}
HEADS = {"minilm": 12, "base": 12, "tiny": 2}
POSITIONS = 512
CALL, BATCH = 64, 32
"""Texts of a call of Baton's, and of a batch of torch's."""
BATON: Sequence[tuple[Dtype, Quantize]] = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"))

Texts = Sequence[tuple[int, ...]]
Subject = Callable[[Texts], NDArray[np.float32]]
"""Computes the vector of each text: float32 [texts, hidden]."""


def texts(count: int, vocabulary: int, most: int) -> Texts:
    """Tokens of texts whose lengths are spread as those of sentences and short paragraphs."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.6, 0.7, count), 4, most).astype(int)
    return [tuple(map(int, random.integers(4, vocabulary, length))) for length in lengths]


def baton(runner: IreeEncoderRunner) -> Subject:
    """Vectors by Baton's runner."""

    def embed(given: Texts) -> NDArray[np.float32]:
        vectors = []
        for at in range(0, len(given), CALL):
            chunks = [Chunk(slot, tokens, 0, 0) for slot, tokens in enumerate(given[at : at + CALL])]
            vectors += [rows.mean(0) for rows in runner.hidden(chunks)]
        return _normalized(np.stack(vectors))

    return embed


def torch_subject(path: Path, dtype: str, threads: int) -> Subject:
    """Vectors by transformers, in the order of `SentenceTransformer.encode`."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = transformers.BertModel.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    def embed(given: Texts) -> NDArray[np.float32]:
        order = sorted(range(len(given)), key=lambda at: -len(given[at]))
        vectors = np.zeros((len(given), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for first in range(0, len(order), BATCH):
                batch = order[first : first + BATCH]
                ids = torch.zeros(len(batch), max(len(given[at]) for at in batch), dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, at in enumerate(batch):
                    ids[row, : len(given[at])] = torch.tensor(given[at])
                    mask[row, : len(given[at])] = 1
                hidden = model(ids, attention_mask=mask).last_hidden_state
                weights = mask[..., None].to(hidden.dtype)
                vectors[batch] = ((hidden * weights).sum(1) / weights.sum(1)).float().numpy()
        return _normalized(vectors)

    return embed


def _normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    normalized: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalized


def measure(shape: str, args: argparse.Namespace) -> None:
    """Print the table of a shape."""
    path = args.cache_dir / f"encoder-{shape}"
    fields = {**SHAPES[shape], "num_attention_heads": HEADS[shape]}
    if not (path / "model.safetensors").exists():
        make_encoder(path, "bert", vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, **fields)
    config, given = read_encoder(path), texts(args.texts, VOCABULARY, 60 if args.smoke else 250)
    subjects: dict[str, Subject] = {}
    runners = []
    for dtype, quantize in BATON[: 1 if args.smoke else None]:
        options = LoadOptions(
            device="local-task",
            dtype=dtype,
            quantize=quantize,
            slots=CALL,
            context=64 if args.smoke else 0,
            cache_dir=args.cache_dir,
            threads=args.threads,
        )
        runners.append(IreeEncoderRunner.load(path, config, options, lambda *progress: None, background=False))
        subjects[f"Baton {dtype if quantize == 'none' else quantize}"] = baton(runners[-1])
    if not args.smoke:
        subjects |= {f"torch {each}": torch_subject(path, each, args.threads) for each in ("float32", "bfloat16")}
    expected = next(iter(subjects.values()))(given)
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    errors = {name: float(1 - (embed(given) * expected).sum(1).min()) for name, embed in subjects.items()}
    for _ in range(args.rounds):
        for name, embed in subjects.items():
            began = time.perf_counter()
            embed(given)
            seconds[name].append(time.perf_counter() - began)
    tokens = sum(map(len, given))
    print(f"\n{shape}: {len(given)} texts, {tokens} tokens\n")
    print("| subject | embeddings/s | tokens/s | furthest cosine from float32 |\n| --- | --- | --- | --- |")
    for name in subjects:
        took = statistics.median(seconds[name])
        print(f"| {name} | {len(given) / took:,.1f} | {tokens / took:,.0f} | {1 - errors[name]:.5f} |")
    for runner in runners:
        runner.close()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--shape", nargs="+", choices=sorted(SHAPES), default=["minilm", "base"], help="the models")
    parser.add_argument("--texts", type=at_least(1), default=128, help="texts of a round")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds in which the subjects take turns")
    parser.add_argument("--threads", type=at_least(1), default=2, help="compute threads of each subject")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"shape": ["tiny"], "texts": 4, "rounds": 1})


def main() -> None:
    """Measure every shape."""
    args = arguments()
    configure_logging("bench", "warning")
    args.cache_dir.mkdir(parents=True, exist_ok=True)
    for shape in args.shape:
        measure(shape, args)


if __name__ == "__main__":
    main()
