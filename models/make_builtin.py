"""Makes the built-in models and scores them: `python -m models.make_builtin [--out DIRECTORY]`.

Both are trained on text that models/corpus generates, on the CPU or on whatever device JAX finds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
from tokenizers import Tokenizer

from models import builtin_path, draft_path
from models.card import card
from models.corpus.facts import COUNTRIES
from models.corpus.mixture import SHARES, TOOL_SHARES, take
from models.decoder import Decoder, read_weights
from models.evaluate import ScoredReply, agreement, evaluate, table_text
from models.export import export
from models.packing import training_windows
from models.tokenizer import VOCABULARY, chat_template, render_document, train_tokenizer
from models.training import Shape, TrainingPlan, train

TOKENIZER_SEED, TOKENIZER_DOCUMENTS = 1, 20_000

PARTS = ((2, SHARES), (5, TOOL_SHARES))
"""Seed and mixture of each part of the training; the second starts from the weights that the first wrote."""

SHAPE = Shape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=512, vocabulary=VOCABULARY)
PLANS: tuple[TrainingPlan, ...] = (
    TrainingPlan(steps=1200, batch=6, length=384, peak_rate=4e-3, seed=0),
    TrainingPlan(steps=450, batch=6, length=384, peak_rate=2e-3, seed=0, warmup=30),
)
DRAFT_SHAPE = Shape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=256, vocabulary=VOCABULARY)
DRAFT_PLANS: tuple[TrainingPlan, ...] = (
    TrainingPlan(steps=500, batch=6, length=384, peak_rate=4e-3, seed=1),
    TrainingPlan(steps=300, batch=6, length=384, peak_rate=2e-3, seed=1, warmup=30),
)


def make_tokenizer() -> Tokenizer:
    """The tokenizer of both models."""
    template = chat_template()
    return train_tokenizer(render_document(template, each) for each in take(TOKENIZER_SEED, TOKENIZER_DOCUMENTS))


def learn(
    name: str, directory: Path, shape: Shape, plan: TrainingPlan, tokenizer: Tokenizer, part: int
) -> dict[str, Any]:
    """Run one part of the training and write the model; returns how it went."""
    seed, mixture = PARTS[part]
    windows = training_windows(tokenizer, seed, plan.steps * plan.batch, plan.length, mixture)
    start = time.monotonic()

    def report(step: int, loss: float) -> None:
        rate = step * plan.batch * plan.length / (time.monotonic() - start)
        print(f"{name}: part {part + 1}, step {step} of {plan.steps}, loss {loss:.4f}, {rate:.0f} tokens/s", flush=True)

    tensors = train(shape, plan, windows, report, read_weights(directory) if part else None)
    export(directory, shape, tensors, tokenizer)
    return {"plan": asdict(plan), "tokens": plan.tokens, "seconds": round(time.monotonic() - start)}


def make(
    name: str, directory: Path, shape: Shape, plans: Sequence[TrainingPlan], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Train one model in all parts and write it; returns how it was made."""
    parts = [learn(name, directory, shape, plan, tokenizer, part) for part, plan in enumerate(plans)]
    return description(name, directory, shape, parts)


def description(name: str, directory: Path, shape: Shape, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What score.json holds beside the score."""
    return {
        "name": name,
        "shape": asdict(shape),
        "parameters": sum(int(tensor.size) for tensor in read_weights(directory).values()),
        "countries": len(COUNTRIES),
        "parts": list(parts),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
    }


def record(directory: Path, made: dict[str, Any]) -> list[ScoredReply]:
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
    parser.add_argument("--steps", type=int, default=None, help="steps of each part, to try the script (default: all)")
    options = parser.parse_args()
    target = builtin_path() if options.out is None else options.out / builtin_path().name
    draft_target = draft_path() if options.out is None else options.out / draft_path().name
    plans, draft_plans = PLANS, DRAFT_PLANS
    if options.steps is not None:
        plans, draft_plans = (
            tuple(replace(plan, steps=options.steps) for plan in each) for each in (plans, draft_plans)
        )
    tokenizer = make_tokenizer()
    made = make("baton-tiny", target, SHAPE, plans, tokenizer)
    replies = record(target, made)
    draft = make("baton-tiny-draft", draft_target, DRAFT_SHAPE, draft_plans, tokenizer)
    record(draft_target, {**draft, "agreement": round(agreement(Decoder(draft_target), replies), 4)})


if __name__ == "__main__":
    main()
