"""Vision models in GGUF files that llama.cpp's own converter makes, served by Baton and by llama.cpp: greedy answers
about an image.

    python bench/evaluation/vision_gguf_equality.py [--families qwen2_vl qwen3_5] [--kind f32] [--tokens 12]

For each family transformers makes a small checkpoint of random weights, and llama.cpp's `convert_hf_to_gguf.py` the
files of the language model and of the projector. Baton and llama-server answer a question about an image whose sides
need no resizing, since each resizes in another way, in float32 with KV in float32 and without flash attention. The
columns are the tokens of the prompt in both, the bytes of the answers that are equal, of how many, and the largest
difference of the logarithms of their tokens' probabilities. An answer may end within a character, which llama-server
leaves out.

The exit status is 1 if a prompt or an answer in float32 differs. Build llama.cpp with
`python bench/peers/llama_cpp.py`, and install torch with `pip install -e '.[reference]'`. --smoke makes the files of
one family without llama.cpp, whose part is not measured.
"""

import argparse
import base64
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_cache_dir
from bench.harness.served import served
from bench.peers.build import PeerError
from bench.peers.llama_cpp import LlamaCpp
from bench.peers.weights.llama_cpp_files import make_file
from tests.vision_checkpoints import make_vision_checkpoint
from tests.vision_checkpoints.projector_files import PUBLISHED, make_projected
from workers.host.topology import usable_cores

CONTEXT = 2048
SIDES = {"lfm2_vl": 512, "qwen2_5_vl": 64, "qwen2_vl": 64, "qwen3_5": 256, "qwen3_vl": 256}
"""Pixels of a side of the image by family: whole tokens, and within the bounds of both servers."""
TEXTS = {"lfm2_vl": "Lfm2ForCausalLM"}
"""The class of the language model, where the converter does not know that of the whole."""
QUESTION = ("Look at this ", " and name it.")


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """An answer: its bytes, and after how many of them each token ends, with its log-probability."""

    prompt: int
    """Tokens of the prompt."""
    content: bytes
    ends: Mapping[int, float]

    @classmethod
    def of(cls, url: str, side: int, tokens: int) -> "GreedyAnswer":
        """Ask a server. Raises `PeerError` if it refuses."""
        content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in QUESTION]
        content.insert(1, {"type": "image_url", "image_url": {"url": image_url(side)}})
        body = {
            "model": "vision",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": True,
        }
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600.0, trust_env=False)
        if response.is_error:
            raise PeerError(f"{response.status_code}: {response.text[:300]}")
        answer, made, ends = response.json(), b"", dict[int, float]()
        logprobs = answer["choices"][0].get("logprobs")
        if logprobs is None:
            raise PeerError("the answer has no whole character: choose another --seed")
        for each in logprobs["content"]:
            made += bytes(each["bytes"])
            if each["bytes"]:  # control tokens have none, and would stand for the token before them
                ends[len(made)] = each["logprob"]
        return cls(answer["usage"]["prompt_tokens"], made, ends)

    def equal_bytes(self, other: "GreedyAnswer") -> int:
        pairs = enumerate(zip(self.content, other.content, strict=False))
        return next((at for at, (one, two) in pairs if one != two), min(len(self.content), len(other.content)))


def image_url(side: int) -> str:
    """Return a PNG of random colours in eight rows and columns."""
    colours = np.random.default_rng(5).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class VisionEquality:
    """Compares one family after the other."""

    def __init__(self, args: argparse.Namespace, peer: LlamaCpp | None, folder: Path) -> None:
        self._args, self._peer, self._folder = args, peer, folder
        self.good = True

    def compare(self, family: str) -> None:
        """Print a line."""
        folder, side = self._folder / family, SIDES[family]
        checkpoint = make_vision_checkpoint(
            folder / "checkpoint", family, seed=self._args.seed, **PUBLISHED.get(family, {})
        )
        model = make_projected(checkpoint, folder) if self._peer is None else self._converted(family, checkpoint)
        options = {
            "model": str(model), "name": "vision", "backend": "iree", "dtype": "float32", "max_batch_size": 1,
            "context": CONTEXT, "speculate": "off", "log_level": "error", "cache_dir": str(self._args.cache_dir),
        }  # fmt: skip
        with served(options) as found:
            ours = GreedyAnswer.of(f"http://{found.server.host}:{found.server.port}", side, self._args.tokens)
        if self._peer is None:
            print(f"{family:12} {ours.prompt:5} {len(ours.content):3} bytes, llama.cpp not measured", flush=True)
            return
        peer = self._peer.with_options("--mmproj", str(_projector(model)), "--jinja", "--special", "-fa", "off")
        with peer.server(model, 1, CONTEXT, "f32") as url:
            theirs = GreedyAnswer.of(url, side, self._args.tokens)
        same, most = ours.equal_bytes(theirs), min(len(ours.content), len(theirs.content))
        shared = [abs(ours.ends[at] - theirs.ends[at]) for at in ours.ends if at <= same and at in theirs.ends]
        largest = max(shared, default=float("nan"))
        print(f"{family:12} {ours.prompt:5} {theirs.prompt:5} {same:5} of {most:3} {largest:9.3f}", flush=True)
        self.good &= self._args.kind != "f32" or (same == most and ours.prompt == theirs.prompt)

    def _converted(self, family: str, checkpoint: Path) -> Path:
        """Convert a checkpoint whose tensors and fields are named as published."""
        assert self._peer is not None, "it has the converter"
        file, model = checkpoint / "config.json", checkpoint.with_name("model.gguf")
        config = json.loads(file.read_text())
        config["text_config"] |= {"architectures": [TEXTS[family]]} if family in TEXTS else {}
        file.write_text(json.dumps(config))
        if family == "lfm2_vl":
            weights = load_file(checkpoint / "model.safetensors")
            named = {
                name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in weights.items()
            }
            save_file(named, checkpoint / "model.safetensors", metadata={"format": "pt"})
        more = ("--no-mtp",) if family == "qwen3_5" else ()
        for target, extra in ((model, more), (_projector(model), ("--mmproj",))):
            make_file(checkpoint, target, self._args.kind, self._peer, extra)
        return model


def _projector(model: Path) -> Path:
    return model.with_name("mmproj-model.gguf")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_cache_dir(parser)
    parser.add_argument("--families", nargs="+", choices=list(SIDES), default=list(SIDES), help="to compare")
    parser.add_argument("--kind", choices=["f32", "f16", "bf16"], default="f32", help="of the files")
    parser.add_argument("--tokens", type=at_least(1), default=12, help="of each answer")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of the weights")
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama.cpp's programs, beside its source")
    return parsed(parser, words, smoke={"families": ["qwen2_vl"], "tokens": 4})


def main() -> None:
    args = arguments()
    try:
        peer = None if args.smoke else LlamaCpp.find(args.llama_cpp, usable_cores())
    except PeerError as error:
        sys.exit(str(error))
    print("family       Baton llama.cpp   bytes of  difference")
    with tempfile.TemporaryDirectory() as folder:
        equality = VisionEquality(args, peer, Path(folder))
        for family in args.families:
            try:
                equality.compare(family)
            except PeerError as error:
                print(f"{family:12} {error}", flush=True)
                equality.good = False
    sys.exit(0 if equality.good else 1)


if __name__ == "__main__":
    main()
