"""Child process of `bench/peers/rivals.py`: OpenVINO GenAI's continuous batching on the CPU.

python bench/peers/children/openvino_genai.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
import openvino
import openvino_genai

from bench.peers.children.serve import Generation, serve


class OpenVino:
    """A pipeline whose steps are timed one by one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in settings["scheduler"].items():
            setattr(scheduler, name, value)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["model"], scheduler, "CPU", settings["properties"]
        )
        self._requests = 0

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Generation:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        generation = Generation(tokens=[[] for _ in prompts])
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.asarray([prompt], np.int64))
            handles.append(self._pipeline.add_request(self._requests, ids, config))
            self._requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            new = 0
            for handle, out in zip(handles, generation.tokens, strict=True):
                while handle.can_read():
                    (found,) = handle.read().values()
                    out += found.generated_ids
                    new += len(found.generated_ids)
            generation.add(new)
        return generation


if __name__ == "__main__":
    serve(OpenVino)
