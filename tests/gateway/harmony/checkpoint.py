"""A checkpoint without weights whose vocabulary has harmony's special tokens, and a chat template of that format.

The format: https://github.com/openai/harmony (docs/format.md).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models import builtin_path

TOKENS = ("<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>")
SCRIPTS = "scripts.json"
TEMPLATE = """\
{%- set effort = reasoning_effort if reasoning_effort is defined else "medium" -%}
{{- "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m-%d") + "\\nReasoning: " + effort -}}
{{- "\\n# Valid channels: analysis, commentary, final.<|end|>" -}}
{%- set said = messages[0].content if messages[0].role in ("system", "developer") else "" -%}
{%- if said or tools -%}
  {{- "<|start|>developer<|message|>" + said -}}
  {%- if tools -%}
    {{- "# Tools\\n\\nnamespace functions {\\n" -}}
    {%- for tool in tools -%}
      {{- "// " + tool.function.description + "\\ntype " + tool.function.name + " = () => any;\\n" -}}
    {%- endfor -%}
    {{- "}" -}}
  {%- endif -%}
  {{- "<|end|>" -}}
{%- endif -%}
{%- set last = namespace(name=none) -%}
{%- for message in messages -%}
  {%- if message.role == "user" -%}
    {{- "<|start|>user<|message|>" + message.content + "<|end|>" -}}
  {%- elif message.role == "tool" -%}
    {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" -}}
    {{- message.content|tojson + "<|end|>" -}}
  {%- elif message.role == "assistant" and "tool_calls" in message -%}
    {%- if message.content and message.thinking -%}{{- raise_exception("either text or thinking") -}}{%- endif -%}
    {%- set later = namespace(final=false) -%}
    {%- for other in messages[loop.index:] -%}
      {%- if other.role == "assistant" and "tool_calls" not in other -%}{%- set later.final = true -%}{%- endif -%}
    {%- endfor -%}
    {%- set before = message.content or message.thinking -%}
    {%- if before and not later.final -%}
      {{- "<|start|>assistant<|channel|>analysis<|message|>" + before + "<|end|>" -}}
    {%- endif -%}
    {%- set last.name = message.tool_calls[0].function.name -%}
    {{- "<|start|>assistant to=functions." + last.name + "<|channel|>commentary json<|message|>" -}}
    {{- message.tool_calls[0].function.arguments|tojson + "<|call|>" -}}
  {%- elif message.role == "assistant" -%}
    {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" -}}{%- endif -%}
"""
"""As OpenAI's does, it shows one call of a message, and the analysis of those alone that no final message follows."""


@dataclass(frozen=True)
class Script:
    """An answer of the model to prompts that end so, and have all of these parts."""

    end: str
    answer: str
    has: Sequence[str] = ()


def make_harmony_checkpoint(path: Path, scripts: Sequence[Script], template: str = TEMPLATE) -> Path:
    """Write what a worker needs to serve the format, without weights."""
    path.mkdir()
    tokenizer: dict[str, Any] = json.loads((builtin_path() / "tokenizer.json").read_text())
    first = 1 + max([*tokenizer["model"]["vocab"].values(), *(each["id"] for each in tokenizer["added_tokens"])])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    tokenizer["added_tokens"] += [{"id": first + at, "content": each} | flags for at, each in enumerate(TOKENS)]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|return|>"}))
    ends = [first + TOKENS.index(each) for each in ("<|return|>", "<|call|>")]
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (path / SCRIPTS).write_text(json.dumps([asdict(script) for script in scripts]))
    return path
