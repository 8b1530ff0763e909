"""A worker that writes given answers, with the tokenizer of a checkpoint: `python -m tests.gateway.harmony.dictated`,
with the arguments of `-m workers`."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gateway.harmony.checkpoint import SCRIPTS
from tests.gateway.harness.worker_process import serve
from workers.engine.engine import BatchEngine
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.load_options import Progress
from workers.output_formats.formats.choice import choose_formats
from workers.process.loading import Loaded
from workers.process.spec import WorkerSpec
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

CONTEXT = 2048


class Dictated(ScriptedRunner):
    """Writes the answer of the first script that fits the prompt; where a grammar forbids a token of it, what the
    grammar allows. Without a script it writes the prompt."""

    def __init__(self, tokenizer: CheckpointTokenizer, scripts: Sequence[dict[str, Any]], slots: int) -> None:
        size = tokenizer.vocab_size
        super().__init__(slots=slots, context=CONTEXT, vocab_size=size, alphabet=range(8, 264))
        self._tokenizer, self._scripts = tokenizer, scripts
        self._rows: list[list[int]] = [[] for _ in range(slots)]
        self._dictated: list[tuple[int, list[int]]] = [(0, [])] * slots
        """The rows of the prompt, and the answer to it."""

    def _write(self, slot: int, token: int, position: int, adapter: int = 0) -> None:
        self._rows[slot] = [*self._rows[slot][: self._written(slot)], token]
        super()._write(slot, token, position, adapter)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        super().copy_prefix(source, target, length)
        self._rows[target] = self._rows[source][:length]

    def _sample_last(self, slot: int, spec: SampleSpec) -> int | None:
        prompt = self._text(self._rows[slot])
        for script in self._scripts:
            if prompt.endswith(script["end"]) and all(part in prompt for part in script["has"]):
                answer = script["answer"]
                break
        else:
            shown = prompt.replace("<|", "[").replace("|>", "]")
            answer = f"<|channel|>final<|message|>no script for {shown}<|return|>"
        self._dictated[slot] = len(self._rows[slot]), self._tokenizer.encode(answer, special=False)
        return super()._sample_last(slot, spec)

    def _text(self, tokens: Sequence[int]) -> str:
        named = {token: name.encode() for name, token in self._tokenizer.added_tokens.items()}
        return b"".join(named.get(token) or self._tokenizer.piece(token) for token in tokens).decode()

    def _sample_or_none(self, slot: int, spec: SampleSpec, value: int) -> int | None:
        start, answer = self._dictated[slot]
        at = len(self._rows[slot]) - start
        if at < len(answer) and (spec.mask is None or spec.mask[answer[at] // 32] >> answer[at] % 32 & 1):
            return answer[at]
        return super()._sample_or_none(slot, spec, value)


def _load(spec: WorkerSpec, progress: Progress) -> Loaded:
    path = Path(spec.model_path)
    tokenizer = CheckpointTokenizer.from_dir(path)
    runner = Dictated(tokenizer, json.loads((path / SCRIPTS).read_text()), spec.max_batch_size)
    grammars = GrammarCompiler(functools.partial(tokenizer_vocabulary, tokenizer, tokenizer.vocab_size))
    formats = choose_formats(chat_template=tokenizer.template_text, added_tokens=tokenizer.added_tokens)
    engine = BatchEngine(runner, max_queue=spec.max_queue, step_tokens=None)
    return Loaded(engine, tokenizer, CONTEXT, grammars=grammars, formats=formats)


if __name__ == "__main__":
    raise SystemExit(serve(_load))
