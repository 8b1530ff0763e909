"""Makes schemas.json of the kinds that the chart has: `python -m tests.deploy.helm.reduce_schemas`. They are
those of the package kubernetes-validate (Apache-2.0), without descriptions."""

import importlib.resources
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "schemas.json"
VERSIONS = ("1.28.0", "1.37.0")
"""The oldest version of Kubernetes that the chart is for, and the latest one."""
KINDS = {
    "ConfigMap": "configmap-v1",
    "Deployment": "deployment-apps-v1",
    "NetworkPolicy": "networkpolicy-networking-v1",
    "Pod": "pod-v1",
    "PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "Secret": "secret-v1",
    "Service": "service-v1",
    "ServiceAccount": "serviceaccount-v1",
    "StatefulSet": "statefulset-apps-v1",
}


def reduced(version: str) -> dict[str, Any]:
    """The schemas of one version, by kind, and the definitions that they use."""
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    every = json.loads((folder / "_definitions.json").read_text())["$defs"]
    used: dict[str, Any] = {}

    def clean(schema: Any) -> Any:
        if isinstance(schema, list):
            return [clean(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {}
        for name, value in schema.items():
            if name == "$ref" and isinstance(value, str):
                definition = value.rpartition("/")[2]
                if definition not in used:
                    used[definition] = {}
                    used[definition] = clean(every[definition])
                kept[name] = f"#/$defs/{definition}"
            elif not (name.startswith("x-kubernetes") or (name == "description" and isinstance(value, str))):
                kept[name] = clean(value)
        return kept

    kinds = {kind: clean(json.loads((folder / f"{name}.json").read_text())) for kind, name in KINDS.items()}
    return {"kinds": kinds, "$defs": used}


if __name__ == "__main__":
    found = {version.rpartition(".")[0]: reduced(version) for version in VERSIONS}
    FILE.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")
