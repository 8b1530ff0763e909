"""The model card, generated from score.json: the record of the training and the score."""

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

**It is a demonstration and a test fixture, not an assistant.** Its training text is generated: the capitals of
{countries} countries and a few other facts, sums of numbers up to 20, short dialogues, JSON objects, Hermes-style tool
calls, answers to their results, and words to copy. The score below shows which of these it learned. Its answers to
anything else are wrong, often confidently.
For real use, serve a real model with `baton serve PATH_OR_HUB_ID`.

| | |
|---|---|
| architecture | LlamaForCausalLM, {layers} layers, hidden size {hidden}, FFN {ffn}, tied embeddings |
| attention | {heads} heads and {kv_heads} KV heads of {head_dim} |
| parameters | {parameters:,}, stored in bfloat16 |
| tokenizer | byte-level BPE, {vocabulary} tokens, one token per digit; ChatML template with tools |
| context | {max_positions} positions; trained on windows of {lengths} tokens |
| training text | {tokens:,} tokens of generated English (`models/corpus`), {steps} steps in {stages} stages |
| precision | {precision} |
| training time | {minutes:.0f} minutes on {device} |

## Score

The phrasings and system prompts of the questions are held out: they do not occur in the training text, except for the
phrasing of the completions. The facts, names and sums do occur in it, so that the score measures recall, not inference.
There are nine usual tools, such as `get_weather` with a `city`. A known tool is one of them with names that vary, as in
the first stage of the training. An unknown tool has a name that does not occur in training, and must be read from the
prompt.

Replies are decoded greedily from the shipped weights by `python -m models.evaluate`, in float32 and with activations
rounded to bfloat16. A chat reply counts only if it ends with an end-of-turn token. "JSON: the right object" and "and
its arguments" judge the same replies as the row above each.

{table}
{served}{agreement}
## How to train it again

    pip install -e .
    python -m models.make_builtin

These commands train and score both built-in models and write this page, in under an hour on two CPU cores with AMX and
without other work. The first stage has everything, the second one tools with fixed names, and the third one results of
tools, schemas, refusals and words to copy. `--from-stage` starts with a later one, from weights that have ended the
stage before. Data and initial weights are seeded. Floating-point sums differ between machines, so that the new weights
have a similar score, but are not bit-identical.
"""

_SERVED = """
## Score as a server runs it

These are answers to requests with tools and JSON schemas, with the grammars, the parsed calls and the default backend
of a server, at temperature 0, by `python -m models.served`. The name and the arguments of a call must both be right, an
object must equal the expected one, and any other answer must be the expected sentence. The phrasings are held out. The
everyday questions were written by hand, without the templates of the training.

{table}
"""

_PURPOSE = {
    "baton-tiny": (
        "The model that `baton serve` serves by default: small enough to ship, with answers that can be checked."
    ),
    "baton-tiny-draft": (
        "The smaller sibling of baton-tiny with the same tokenizer, to draft for it in speculative decoding.\n\n"
        "`baton serve --draft-model models/builtin_draft` uses it. It is in the repository and in the "
        "source distribution, and is not installed."
    ),
}


def card(made: Mapping[str, Any]) -> str:
    """Return README.md of a model. `made` is the contents of score.json."""
    agreement = served = ""
    parts = made["parts"]
    if "served" in made:
        served = _SERVED.format(table=table_text(made["served"]))
    if "agreement" in made:
        agreement = (
            f"\nOf the tokens in baton-tiny's replies to these questions, {made['agreement']:.1%} are also the most "
            "likely ones of this model, given the tokens before them.\n"
        )
    rounded = [str(stage) for stage, part in enumerate(parts, start=1) if part.get("products") == "bfloat16"]
    device = made["device"] if made["device"] != "cpu" else f"a CPU with {made['cores']} cores, shared with other work"
    return _CARD.format(
        **made["shape"],
        name=made["name"],
        purpose=_PURPOSE[made["name"]],
        countries=made["countries"],
        parameters=made["parameters"],
        lengths=" and ".join(str(length) for length in sorted({part["plan"]["length"] for part in parts})),
        stages=("one", "two", "three")[len(parts) - 1],
        steps=sum(part["plan"]["steps"] for part in parts),
        precision=f"float32, with products in bfloat16 in stage {' and '.join(rounded)}" if rounded else "float32",
        tokens=sum(part["tokens"] for part in parts),
        minutes=sum(part["seconds"] for part in parts) / 60,
        device=device,
        table=table_text(made["score"]),
        agreement=agreement,
        served=served,
    )
