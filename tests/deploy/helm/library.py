"""Helm's own library renders and lints the chart: `python -m tests.deploy.helm.library`, with a task as JSON on
standard input. It runs in a process of its own, as it brings the runtime of Go."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "baton"
RELEASE, NAMESPACE = "demo", "llm"
Values = Mapping[str, Any]


class Rendered(NamedTuple):
    """The texts of the templates by their names, or the error of values that are refused."""

    templates: dict[str, str]
    error: str = ""


def installed() -> bool:
    """Helm's library is there: `pip install '.[helm]'`."""
    return importlib.util.find_spec("helm_python") is not None


def render(values: Sequence[Values]) -> list[Rendered]:
    """Render the chart with each of these values."""
    return [Rendered(*each) for each in _run({"render": list(values)})]


def lint(values: Values) -> list[str]:
    """The errors and warnings of `helm lint --strict`."""
    return list(_run({"lint": values}))


def _run(task: Mapping[str, Any]) -> Any:
    command = [sys.executable, "-m", "tests.deploy.helm.library"]
    done = subprocess.run(
        command, input=json.dumps(task), capture_output=True, text=True, timeout=60, cwd=CHART.parents[2]
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    """Do the task of standard input."""
    helm: Any = importlib.import_module("helm_python")
    task = json.load(sys.stdin)
    if "lint" in task:
        found = helm.lint(CHART, task["lint"], strict=True)
        warnings = [each["error"] for each in found["messages"] if each["severity"] >= 2]
        json.dump([*found["errors"], *warnings], sys.stdout)
        return
    results: list[tuple[dict[str, str], str]] = []
    with helm.Chart.load(CHART) as chart:
        for values in task["render"]:
            try:
                chart.validate_schema(values)
                results.append((chart.render(values, name=RELEASE, namespace=NAMESPACE), ""))
            except helm.HelmError as error:
                results.append(({}, str(error)))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
