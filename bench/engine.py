"""Tokens a second of the IREE runner through `BatchEngine`, beside the limit that memory sets.

    python bench/engine.py [--models 110m 0.5b] [--device local-task] [--dtype bfloat16] [--steps 48]

Shapes: 110m is a Llama (12 layers, width 768, 12/4 heads, MLP 2048, vocabulary 32000), 0.5b is Qwen2.5-0.5B (24 layers,
width 896, 14/2 heads, MLP 4864, vocabulary 151936, biases, tied). Weights are random, made here.

  decode   greedy tokens a second at 1, 4 and 8 streams with 100 to 200 rows of context: median over the engine's steps
  limit    steps a second if the weights that a step reads came at the read bandwidth, times the streams
  prefill  prompt tokens a second of one prompt of 128 and of 512 tokens: median over prompts

Read bandwidth is measured in the same run: the fastest of several passes over 512 MiB on as many threads as the runner.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol.request import Sampling
from workers.affinity import usable_cores
from workers.checkpoint import ModelConfig
from workers.engine import BatchEngine, Request
from workers.iree.model import parameters
from workers.iree.runner import IreeRunner

SHAPES: dict[str, dict[str, Any]] = {
    "110m": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
        "vocab_size": 32000,
    },
    "0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "rope_theta": 1e6,
    },
}
SLOTS = 8
CONTEXT = 1024
PROMPT = 100


def make_model(folder: Path, name: str) -> Path:
    """A checkpoint of random bfloat16 weights: one block of noise, repeated, as drawing 500 million takes a minute."""
    config = SHAPES[name] | {
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    noise = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    header: dict[str, Any] = {}
    offset = 0
    shapes = dict(source for p in parameters(ModelConfig.from_dir(path), "bfloat16") for source in p.sources)
    for tensor, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 64)
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor, shape in shapes.items():
            values = np.resize(noise, int(np.prod(shape))) * shape[-1] ** -0.5
            values = 1.0 + 0.1 * values if "norm" in tensor else values
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())
    return path


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory together."""
    block = np.ones((512 << 20) // 8, np.int64)
    parts = np.array_split(block, threads)
    with ThreadPoolExecutor(threads) as pool:

        def once() -> float:
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            return block.nbytes / (time.perf_counter() - start)

        return max(once() for _ in range(8))


def decode(runner: IreeRunner, streams: int, steps: int) -> float:
    """Median seconds of a step that decodes `streams` rows."""
    engine = BatchEngine(runner, max_queue=streams, step_tokens=1 << 20)
    prompt = tuple(range(3, 3 + PROMPT))
    for stream in range(streams):
        engine.submit(Request(stream, prompt, Sampling(), steps + 4, frozenset()))
    engine.step()
    engine.step()
    return statistics.median(timed(engine.step) for _ in range(steps))


def prefill(runner: IreeRunner, length: int, prompts: int) -> float:
    """Median seconds from a prompt of `length` tokens to its first token."""
    engine = BatchEngine(runner, max_queue=1, step_tokens=1 << 20)

    def one(stream: int) -> float:
        engine.submit(Request(stream, tuple(3 + i % 500 for i in range(length)), Sampling(), 1, frozenset()))
        return timed(engine.step)

    one(0)
    return statistics.median(one(stream + 1) for stream in range(prompts))


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, args: argparse.Namespace, folder: Path) -> None:
    path = make_model(folder, name)
    config = ModelConfig.from_dir(path)
    start = time.perf_counter()
    runner = IreeRunner.load(
        path,
        config,
        device=args.device,
        dtype=args.dtype,
        slots=SLOTS,
        context=CONTEXT,
        cache_dir=args.cache_dir or folder / "cache",
        threads=0,
        progress=lambda phase, done, total: None,
    )
    loaded = time.perf_counter() - start
    size = 4 if args.dtype == "float32" else 2
    read = size * sum(p.rows * p.sources[0][1][1] for p in parameters(config, args.dtype) if p.matrix)
    bandwidth = read_bandwidth(usable_cores())
    print(f"{name} {runner.capabilities.dtype} on {runner.capabilities.device}, ready after {loaded:.0f} s")
    print(f"  memory     {bandwidth / 1e9:8.1f} GB/s read; a step reads {read / 1e6:.0f} MB of weights")
    for streams in (1, 4, 8):
        seconds = decode(runner, streams, args.steps)
        limit = bandwidth / read * streams
        rate = streams / seconds
        print(f"  decode {streams:4d} {rate:10.1f} tok/s  limit {limit:7.1f}  ({rate / limit:4.0%} of it)", flush=True)
    for length in (128, 512):
        print(f"  prefill {length:3d} {length / prefill(runner, length, args.prompts):10.1f} tok/s", flush=True)
    runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=7)
    parser.add_argument("--cache-dir", type=Path, help="keep compiled graphs and packed weights here")
    args = parser.parse_args()
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, args, Path(folder))


if __name__ == "__main__":
    main()
