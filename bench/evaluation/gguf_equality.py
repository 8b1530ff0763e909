"""GGUF files that llama.cpp's own tools make, served by Baton and by llama.cpp: greedy tokens of both.

    python bench/evaluation/gguf_equality.py [--families qwen3 lfm2] [--kinds f32 f16] [--prompts 8] [--tokens 24]

For each family a small checkpoint of random weights is made and converted by llama.cpp's `convert_hf_to_gguf.py`, and
by its `llama-quantize` for the kinds that it names (Q4_K_M and so on). Baton computes the checkpoint and the file, and
llama-server the file, all in float32 with KV in float32 and without flash attention, which rounds to float16. The
columns are the tokens of the file that are those of the checkpoint, in Baton, and those that are llama.cpp's, up to the
first difference of each answer. A file may be another model than its checkpoint: llama.cpp's keys say less than
config.json, and a type that is not f32 rounds weights. llama.cpp computes GELU from a table in float16, rounds
activations to float16 beside weights of that type, and quantizes them beside quantized ones: there most tokens agree.

The exit status is 1 if a file of kind f32 is refused, or if more than a tenth of its tokens are not llama.cpp's. Build
llama.cpp with `python bench/peers/llama_cpp.py`; --smoke converts one family without it.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.folders import default_cache
from bench.measurement.rounds import RefusedError
from bench.peers.build import PeerError
from bench.peers.llama_cpp import LlamaCpp, completion
from bench.peers.weights.llama_cpp_files import make_file
from bench.peers.weights.to_gguf import convert
from tests.checkpoints import make_checkpoint
from tests.families import FAMILIES
from tests.workers.checkpoints.gguf.gguf_files import ARCHITECTURES
from workers.checkpoints.gguf.layouts.latent import MINICPM3
from workers.errors import LoadRefused
from workers.host.topology import usable_cores

CONTEXT, PROMPT = 128, 24
EXACT = ("f32",)
LEAST = 0.9
"""The share of tokens that must agree: a difference in the last bits changes a token where two are as likely."""
LAYERS = 4
"""Layers of a checkpoint. The last attends in every hybrid family, and has no window where every fourth lacks it."""
UNKNOWN = ("falcon", "glm", "helium", "mimo", "ministral", "nemotron_h", "phi3", "phimoe", "stablelm")
"""Families that cannot be compared: llama.cpp does not have them, or its converter fails on their test checkpoints, or
their files need a tokenizer of another kind, or Baton does not read them. Its converter takes every Nemotron-H for a
mixture of experts beside transformers 5. gpt-oss is compared without YaRN's factor: with it, it has other tokens in
llama.cpp, which moves the ends of YaRN's ramp to whole lanes, as the model was not trained; a checkpoint with such ends
has the tokens of llama.cpp. DeepSeek V2 is compared without groups of experts: llama.cpp chooses groups
as V3 does, by two experts of each."""
DELTA = {"linear_value_head_dim": 32, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
"""A gated delta network as llama.cpp expects it: keys are as wide as values, and every fourth layer attends."""
SECTIONS = {
    "partial_rotary_factor": 0.5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
"""Positions in sections, of the width of the test checkpoints."""
WITHOUT_FACTOR = {
    "rope_type": "yarn",
    "factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 512,
    "truncate": False,
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "cohere": {"fields": {"use_qk_norm": False}},
    "deepseek_v2": {"tied": False, "fields": {"q_lora_rank": 48, "topk_method": "greedy", "n_group": 1}},
    "deepseek_v3": {"tied": False, "fields": {"scoring_func": "sigmoid"}},
    "ernie4_5": {"fields": {"use_bias": False}},
    "ernie4_5_moe": {"ffn": 192},
    "exaone4": {"fields": {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS}},
    "glm4_moe": {"tied": False, "fields": {"num_nextn_predict_layers": 0}},
    "gpt_neox": {"tied": False, "kv_heads": 4},
    "gpt_oss": {"tied": False, "fields": {"rope_scaling": WITHOUT_FACTOR}},
    "granitemoehybrid": {"fields": {"intermediate_size": 96}},
    "lfm2_moe": {"fields": {"routed_scaling_factor": 1.0}},
    "minicpm3": {"fields": MINICPM3 | {"v_head_dim": 16}},
    "nemotron": {"tied": False},
    "olmo2": {"tied": False},
    "olmo3": {"tied": False},
    "olmoe": {"tied": False, "kv_heads": 4},
    "phi": {"tied": False, "kv_heads": 4, "ffn": 256},
    "qwen2_moe": {"tied": False},
    "qwen3_5_moe_text": {"fields": DELTA | SECTIONS},
    "qwen3_5_text": {"fields": DELTA | SECTIONS},
    "qwen3_next": {"fields": DELTA},
}
"""Options of checkpoints, as llama.cpp expects them."""


class Equality:
    """Compares one family after the other."""

    def __init__(self, args: argparse.Namespace, peer: LlamaCpp | None, folder: Path) -> None:
        self._args, self._peer, self._folder = args, peer, folder
        self.good = True

    def compare(self, family: str) -> None:
        """Print a line for each kind."""
        checkpoint = make_checkpoint(self._folder / family, family, layers=LAYERS, **OPTIONS.get(family, {}))
        with closing(self._engine(checkpoint)) as engine:
            prompts = [engine.prompt(PROMPT) for _ in range(self._args.prompts)]
            expected = [engine.complete(prompt, self._args.tokens) for prompt in prompts]
        for kind in self._args.kinds:
            self._compare(family, kind, prompts, expected)

    def _compare(self, family: str, kind: str, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
        file, checkpoint = self._folder / f"{family}-{kind}.gguf", self._folder / family
        total = len(prompts) * self._args.tokens
        try:
            if self._peer is None:
                convert(checkpoint, file, "f32")
            else:
                make_file(checkpoint, file, kind, self._peer)
            with closing(self._engine(file)) as engine:
                ours = [engine.complete(prompt, self._args.tokens) for prompt in prompts]
                found = self._of_peer(engine, file, prompts)
        except (LoadRefused, PeerError, RefusedError) as error:
            print(f"{family:18} {kind:7} {error}", flush=True)
            self.good &= kind not in EXACT
            return
        equal = _equal(ours, expected)
        shown = "not measured" if found is None else f"{found} of {total}"
        print(f"{family:18} {kind:7} {equal:5} of {total} {shown:>16}", flush=True)
        self.good &= kind not in EXACT or found is None or found >= LEAST * total

    def _engine(self, path: Path) -> Engine:
        return Engine.load(Setup(path, self._args.cache_dir / "graphs", 1, CONTEXT, "float32"))

    def _of_peer(self, engine: Engine, file: Path, prompts: list[tuple[int, ...]]) -> int | None:
        """Return how many tokens of both are equal, without those that end an answer: llama-server bans these where
        answers go on behind them."""
        if self._peer is None:
            return None
        count, found = self._args.tokens, 0
        with self._peer.server(file, 1, CONTEXT, "f32") as url:
            for prompt in prompts:
                answer = completion(url, list(prompt), count)
                banned = frozenset(int(each["token"]) for each in answer["generation_settings"]["logit_bias"])
                theirs = [int(token) for token in answer["tokens"]]
                found += _equal([engine.complete(prompt, count, banned)], [theirs])
        return found


def _equal(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """Tokens up to the first difference of each answer."""
    found = 0
    for mine, other in zip(ours, theirs, strict=True):
        found += next((at for at, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), len(mine))
    return found


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    known = [family for family in FAMILIES if family in ARCHITECTURES and family not in UNKNOWN]
    parser.add_argument("--families", nargs="+", choices=known, default=known, metavar="FAMILY", help="to compare")
    parser.add_argument("--kinds", nargs="+", default=["f32", "f16"], help="of the files, such as f16 or Q4_K_M")
    parser.add_argument("--prompts", type=at_least(1), default=8, help="random prompts for each file")
    parser.add_argument("--tokens", type=at_least(1), default=24, help="of each answer")
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama.cpp's programs, beside its source")
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="of compiled graphs")
    return parsed(parser, words, smoke={"families": ["qwen3"], "kinds": ["f32"], "prompts": 1, "tokens": 4})


def main() -> None:
    configure_logging("bench", "warning")
    args = arguments()
    try:
        peer = None if args.smoke else LlamaCpp.find(args.llama_cpp, usable_cores()).with_options("-fa", "off")
    except PeerError as error:
        sys.exit(str(error))
    print("family             kind    as checkpoint     as llama.cpp")
    with tempfile.TemporaryDirectory() as folder:
        equality = Equality(args, peer, Path(folder))
        for family in args.families:
            equality.compare(family)
    sys.exit(0 if equality.good else 1)


if __name__ == "__main__":
    main()
