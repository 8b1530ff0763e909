"""Child process of `bench/peers/rivals.py`: vLLM on the CPU.

python bench/peers/children/vllm_cpu.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from vllm import EngineArgs, LLMEngine, SamplingParams

from bench.peers.children.serve import Generation, serve


class Vllm:
    """An engine in this process, whose steps are timed one by one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings["engine"]))
        self._requests = 0

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Generation:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        generation = Generation(tokens=[[] for _ in prompts])
        outputs = {}
        for prompt, out in zip(prompts, generation.tokens, strict=True):
            outputs[str(self._requests)] = out
            self._engine.add_request(str(self._requests), {"prompt_token_ids": list(prompt)}, sampling)
            self._requests += 1
        while self._engine.has_unfinished_requests():
            new = 0
            for result in self._engine.step():
                out = outputs[result.request_id]
                found = result.outputs[0].token_ids[len(out) :]
                out += found
                new += len(found)
            generation.add(new)
        return generation


if __name__ == "__main__":
    serve(Vllm)
