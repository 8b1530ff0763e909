"""The objects that the chart makes, as the tests ask for them."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.deploy.helm.library import CHART, Values

CASES: dict[str, Values] = {
    file.name.removesuffix("-values.yaml"): yaml.safe_load(file.read_text())
    for file in sorted((CHART / "ci").glob("*-values.yaml"))
}
NOTES = "NOTES.txt"
Object = Mapping[str, Any]


class Release:
    """The objects of one rendered chart."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self.notes = next(text for name, text in templates.items() if name.endswith(NOTES))
        self.objects: list[Object] = [
            found
            for name, text in templates.items()
            if not name.endswith(NOTES)
            for found in yaml.safe_load_all(text)
            if found is not None
        ]

    def of(self, kind: str) -> list[Object]:
        """The objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Object:
        """The object of a kind with this name."""
        (found,) = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def controllers(self) -> dict[str, Object]:
        """Deployments and StatefulSets by their component."""
        found = [*self.of("Deployment"), *self.of("StatefulSet")]
        return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in found}

    @property
    def pods(self) -> dict[str, Object]:
        """The specs of the pods that serve, by their component."""
        return {name: each["spec"]["template"]["spec"] for name, each in self.controllers.items()}

    @property
    def labels(self) -> dict[str, Mapping[str, str]]:
        """The labels of all pods, that of `helm test` included."""
        found = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in self.controllers.items()}
        return found | {name: each["metadata"]["labels"] for name, each in zip(["test"], self.of("Pod"), strict=False)}

    def selected(self, selector: Mapping[str, str]) -> set[str]:
        """The components whose pods have these labels."""
        return {name for name, labels in self.labels.items() if selector.items() <= labels.items()}

    def container(self, component: str) -> Object:
        """The container of a component's pod."""
        (found,) = self.pods[component]["containers"]
        return dict(found)

    def environment(self, component: str) -> dict[str, str]:
        """The variables of a component's container that have a value."""
        return {each["name"]: each["value"] for each in self.container(component)["env"] if "value" in each}

    def toml(self, component: str) -> str:
        """The file that a component reads its settings from."""
        (volume,) = (each for each in self.pods[component]["volumes"] if each["name"] == "config")
        return str(self.named("ConfigMap", volume["configMap"]["name"])["data"]["baton.toml"])

    def pod_specs(self) -> Iterator[Object]:
        """The specs of all pods."""
        yield from self.pods.values()
        yield from (each["spec"] for each in self.of("Pod"))
