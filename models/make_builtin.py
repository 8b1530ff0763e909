"""Makes the built-in models and scores them: `python -m models.make_builtin [--out DIRECTORY]`.

Both are trained on text that models/corpus generates, on the CPU or on whatever device JAX finds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from tokenizers import Tokenizer

from models import builtin_path, draft_path
from models.card import card
from models.corpus.facts import COUNTRIES
from models.corpus.mixture import take
from models.decoder import Decoder
from models.evaluate import Reply, agreement, evaluate, table_text
from models.export import export
from models.packing import training_windows
from models.tokenizer import VOCABULARY, chat_template, render_document, train_tokenizer
from models.training import Plan, Shape, train

TOKENIZER_SEED, TOKENIZER_DOCUMENTS = 1, 20_000
TRAINING_SEED = 2

SHAPE = Shape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=512, vocabulary=VOCABULARY)
PLAN = Plan(steps=1200, batch=6, length=384, peak_rate=4e-3, seed=0)
DRAFT_SHAPE = Shape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=256, vocabulary=VOCABULARY)
DRAFT_PLAN = Plan(steps=500, batch=6, length=384, peak_rate=4e-3, seed=1)


def make_tokenizer() -> Tokenizer:
    """The tokenizer of both models."""
    template = chat_template()
    return train_tokenizer(render_document(template, each) for each in take(TOKENIZER_SEED, TOKENIZER_DOCUMENTS))


def make(name: str, directory: Path, shape: Shape, plan: Plan, tokenizer: Tokenizer) -> dict[str, Any]:
    """Train one model and write it; returns how it was made."""
    windows = training_windows(tokenizer, TRAINING_SEED, plan.steps * plan.batch, plan.length)
    start = time.monotonic()

    def report(step: int, loss: float) -> None:
        rate = step * plan.batch * plan.length / (time.monotonic() - start)
        print(f"{name}: step {step} of {plan.steps}, loss {loss:.4f}, {rate:.0f} tokens/s", flush=True)

    tensors = train(shape, plan, windows, report)
    export(directory, shape, tensors, tokenizer)
    return {
        "name": name,
        "shape": asdict(shape),
        "plan": asdict(plan),
        "parameters": sum(int(tensor.size) for tensor in tensors.values()),
        "countries": len(COUNTRIES),
        "tokens": plan.tokens,
        "seconds": round(time.monotonic() - start),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
    }


def record(directory: Path, made: dict[str, Any]) -> list[Reply]:
    """Score the written model and write score.json and the card beside it; returns the float32 replies."""
    columns, replies = evaluate(directory)
    made = {**made, "score": columns}
    (directory / "score.json").write_text(json.dumps(made, indent=2) + "\n")
    (directory / "README.md").write_text(card(json.loads(json.dumps(made))))
    print(table_text(columns), flush=True)
    return replies


def main() -> None:
    """Make both models, score them, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="the directory to write both into (default: models/)")
    parser.add_argument("--steps", type=int, default=None, help="train this many steps instead, to try the script")
    options = parser.parse_args()
    target = builtin_path() if options.out is None else options.out / builtin_path().name
    draft_target = draft_path() if options.out is None else options.out / draft_path().name
    plan, draft_plan = PLAN, DRAFT_PLAN
    if options.steps is not None:
        plan, draft_plan = (Plan(**{**asdict(each), "steps": options.steps}) for each in (plan, draft_plan))
    tokenizer = make_tokenizer()
    made = make("baton-tiny", target, SHAPE, plan, tokenizer)
    replies = record(target, made)
    draft = make("baton-tiny-draft", draft_target, DRAFT_SHAPE, draft_plan, tokenizer)
    record(draft_target, {**draft, "agreement": round(agreement(Decoder(draft_target), replies), 4)})


if __name__ == "__main__":
    main()
