"""Evaluates a model with lm-evaluation-harness, and compares the log-likelihoods with those of `/v1/score`.

    python bench/evaluation/harness_scores.py [--model DIR] [--lm-eval COMMAND]

The harness is not part of Baton: `pip install 'lm_eval[api]' transformers`, here or in another environment, whose
command is `--lm-eval` then. It talks to a server of this script, with four tasks of bench/evaluation/tasks: multiple
choice, a text token by token, and generated text by `local-completions`, and generated text by
`local-chat-completions`. Nothing is downloaded. Printed are its scores, and the largest difference of a log-likelihood
from `/v1/score`; over --tolerance the script fails. Without the harness nothing is run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, not_negative, parsed
from bench.harness.engine import Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir
from models import builtin_path

TASKS = Path(__file__).resolve().parent / "tasks"
OF_COMPLETIONS = ("capitals_choice", "capitals_text", "capitals_completion")
OF_CHATS = ("capitals_answer",)
LIMIT_S = 600
"""For one run of the harness."""


class EvaluationError(Exception):
    """Raised when the harness fails, or finds other log-likelihoods than `/v1/score`."""


class Likelihood(NamedTuple):
    """The log-likelihood of a text after another one, which the harness found."""

    context: str
    text: str
    found: float


class Harness:
    """Runs the harness against one server."""

    def __init__(self, command: str, url: str, model: Path, results: Path) -> None:
        self._command = command
        self._url = url
        self._model = model
        self._results = results

    def run(self, kind: str, path: str, tasks: Sequence[str], *options: str) -> None:
        """Raises `EvaluationError`."""
        arguments = {
            "model": "bench",
            "base_url": self._url + path,
            "num_concurrent": SMOKE_SLOTS,
            "max_length": SMOKE_CONTEXT,
            "tokenizer": self._model,
            "tokenizer_backend": "huggingface",
        }
        given = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = [self._command, "run", "--model", kind, "--model_args", given, "--tasks", ",".join(tasks)]
        command += ["--include_path", ".", "--output_path", str(self._results), "--log_samples", *options]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self._results / "hub")}
        environment = {**os.environ, **offline, "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            command, cwd=TASKS, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            raise EvaluationError(f"the harness ended with status {done.returncode}:\n{done.stderr[-4000:]}")

    def scores(self) -> Iterator[tuple[str, str, float]]:
        """Yield the task, the metric and the score."""
        for file in sorted(self._results.glob("*/results_*.json")):
            for task, metrics in json.loads(file.read_text())["results"].items():
                for name, value in metrics.items():
                    metric = name.partition(",")[0]
                    if isinstance(value, float | int) and "stderr" not in metric and "," in name:
                        yield task, metric, value

    def likelihoods(self) -> Iterator[Likelihood]:
        """Yield those of the multiple choice."""
        for file in sorted(self._results.glob("*/samples_*.jsonl")):
            for line in file.read_text().splitlines():
                yield from likelihoods(json.loads(line))


def likelihoods(sample: dict[str, Any]) -> Iterator[Likelihood]:
    """Yield the log-likelihoods of the choices of one sample; other tasks have none."""
    for arguments, (answer, *_) in zip(sample["arguments"].values(), sample["resps"], strict=True):
        if isinstance(text := arguments.get("arg_1"), str):
            yield Likelihood(arguments["arg_0"], text, float(answer[0]))


def scored(url: str, wanted: Likelihood) -> float:
    """Return what `/v1/score` says."""
    body = json.dumps({"model": "bench", "prompt": wanted.context, "completion": wanted.text}).encode()
    request = urllib.request.Request(f"{url}/v1/score", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return float(json.load(answer)["data"][0]["total"])


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, default=builtin_path(), help="the folder of the checkpoint")
    parser.add_argument("--lm-eval", default="lm_eval", help="the harness's command")
    parser.add_argument("--context", type=at_least(64), default=SMOKE_CONTEXT, help="of the server")
    parser.add_argument("--tolerance", type=not_negative, default=0.001, help="of a log-likelihood")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"context": SMOKE_CONTEXT})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    command = shutil.which(args.lm_eval) or shutil.which(args.lm_eval, path=str(Path(sys.executable).parent))
    if command is None:
        print(f"{args.lm_eval} is not installed: pip install 'lm_eval[api]' transformers")
        return
    setup = Setup(args.model.resolve(), args.cache_dir / "graphs", SMOKE_SLOTS, args.context)
    with tempfile.TemporaryDirectory() as folder, server(setup) as url:
        harness = Harness(str(Path(command).absolute()), url, setup.path, Path(folder))
        harness.run("local-completions", "/v1/completions", OF_COMPLETIONS)
        harness.run("local-chat-completions", "/v1/chat/completions", OF_CHATS, "--apply_chat_template")
        for task, metric, value in harness.scores():
            print(f"{task:20} {metric:14} {value:8.4f}")
        found = list(harness.likelihoods())
        worst = max((abs(each.found - scored(url, each)) for each in found), default=float("nan"))
    print(f"{len(found)} log-likelihoods differ from those of /v1/score by {worst:.6f} at most")
    if not worst <= args.tolerance:
        raise EvaluationError(f"the log-likelihoods differ by more than {args.tolerance}")


if __name__ == "__main__":
    try:
        main()
    except EvaluationError as error:
        sys.exit(str(error))
