"""Child process of `bench/peers/rivals.py`: ONNX Runtime GenAI on the CPU, with a batch that starts and ends together.

python bench/peers/children/onnxruntime_genai.py
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
import onnxruntime_genai

from bench.peers.children.serve import Generation, serve


class OnnxRuntime:
    """A model, and a generator of its own for each batch: continuous batching is not available for CPUs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        config = onnxruntime_genai.Config(settings["model"])
        config.overlay(json.dumps(settings["overlay"]))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Generation:
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        length = len(prompts[0]) + tokens
        parameters.set_search_options(do_sample=False, batch_size=len(prompts), max_length=length, min_length=length)
        generator = onnxruntime_genai.Generator(self._model, parameters)
        generation = Generation(tokens=[[] for _ in prompts])
        generator.append_tokens(np.asarray(prompts, np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
            for out, token in zip(generation.tokens, generator.get_next_tokens(), strict=True):
                out.append(int(token))
            generation.add(len(prompts))
        return generation


if __name__ == "__main__":
    serve(OnnxRuntime)
