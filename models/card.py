"""The model card, written from the record of the training and the score of the written weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.evaluate import table_text

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
language: en
---
# {name}

{purpose}

**It is a demonstration and a test fixture, not an assistant.** It was shown what its generator writes: the capitals of
{countries} countries and a few other facts, sums of numbers up to 20, short dialogues, JSON objects and Hermes-style
tool calls. The score below says which of these it learnt; outside them it is wrong, often
confidently. Real use is `baton serve PATH_OR_HUB_ID` with a real model.

| | |
|---|---|
| architecture | LlamaForCausalLM, {layers} layers, hidden size {hidden}, FFN {ffn}, tied embeddings |
| attention | {heads} heads and {kv_heads} KV heads of {head_dim} |
| parameters | {parameters:,}, stored in bfloat16 |
| tokenizer | byte-level BPE, {vocabulary} tokens, digits one by one; ChatML template with tools |
| context | {max_positions} positions; trained on windows of {length} tokens |
| trained on | {tokens:,} tokens of generated English text (`models/corpus`), {steps} steps in two parts, float32 |
| trained in | {minutes:.0f} minutes on {device} |

## Score

Questions whose phrasings, system prompts and tool names are kept out of the training text (the facts, names and sums
are in it: this measures whether they are found again, not whether new ones are inferred; the completions are the
one phrasing that training has too). The usual tools are nine, such as `get_weather` with a `city`, under the names that
the second part of the training always gives them; a known tool is one of them under a name or with parameters that
vary, and an unknown one has a name that was never shown: reading those from the prompt is hardly learnt.
Greedy decoding of the shipped weights by `python -m models.evaluate`, in float32 and with activations rounded to
bfloat16; a chat reply counts only if it ends itself. "JSON: the right object" and "and its arguments" are judged on
the same replies as the row before each.

{table}
{agreement}
## How to remake it

    pip install -e .
    python -m models.make_builtin

makes both built-in models, scores them, and writes this page; on two CPU cores it takes under 40 minutes. Data and
initial weights are seeded; sums of floating-point numbers differ between machines, so the weights come out alike in
score, not bit for bit.
"""

_PURPOSE = {
    "baton-tiny": (
        "The model that `baton serve` serves when given none: small enough to ship, with answers that can be checked."
    ),
    "baton-tiny-draft": (
        "The smaller sibling of baton-tiny with the same tokenizer, to draft for it in speculative decoding.\n\n"
        "Nothing in Baton uses it yet: it is in the repository and in the source distribution, and is not installed."
    ),
}


def card(made: Mapping[str, Any]) -> str:
    """README.md of a model; `made` is what score.json holds."""
    agreement = ""
    parts = made["parts"]
    if "agreement" in made:
        agreement = (
            f"\nGiven baton-tiny's replies to these questions, {made['agreement']:.1%} of their tokens are the "
            "likeliest ones of this model too.\n"
        )
    device = made["device"] if made["device"] != "cpu" else f"a CPU with {made['cores']} cores, shared with other work"
    return _CARD.format(
        **made["shape"],
        name=made["name"],
        purpose=_PURPOSE[made["name"]],
        countries=made["countries"],
        parameters=made["parameters"],
        length=parts[0]["plan"]["length"],
        steps=sum(part["plan"]["steps"] for part in parts),
        tokens=sum(part["tokens"] for part in parts),
        minutes=sum(part["seconds"] for part in parts) / 60,
        device=device,
        table=table_text(made["score"]),
        agreement=agreement,
    )
