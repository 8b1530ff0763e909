"""Settings of workers that join a gateway, and of their placement on a cluster."""

from typing import Annotated

from pydantic import BaseModel
from pydantic_settings import NoDecode

from cli.config.panels.field import JOINING, PLACEMENT, setting
from protocol.events import Phases


class JoiningSettings(BaseModel):
    """Settings of a worker that joins gateways."""

    join: Annotated[tuple[str, ...], NoDecode] = setting(
        (), JOINING, "Address of a gateway for workers, tcp://HOST:PORT. Repeatable, to serve several.", "ADDRESS"
    )
    server_key: Annotated[tuple[str, ...], NoDecode] = setting(
        (),
        JOINING,
        "The gateway's public key, which baton worker-keys show prints there. Repeatable: one for all gateways, or one "
        "for each, in the order of --join.",
        "KEY",
    )
    key_file: str = setting("", JOINING, "File with this worker's secret key, made by baton worker-keys make.", "FILE")
    join_token: str = setting(
        "",
        JOINING,
        "One-time token from baton worker-keys token, instead of a key that the gateway knows. Better a variable than "
        "a flag, which other users of the machine see.",
        "TOKEN",
    )
    join_timeout_s: float = setting(
        0.0, JOINING, "Seconds without a gateway after which the worker ends; 0: it tries on.", ge=0, le=86400
    )
    role: Phases = setting(
        "both",
        JOINING,
        "What the gateway gives it: prefill for long prompts, whose streams then move to the others; decode for "
        "other requests and such streams; or both.",
    )
    health_file: str = setting(
        "", JOINING, "File that is written every second while the worker is joined and ready; for probes.", "FILE"
    )


class PlacementSettings(BaseModel):
    """Number of workers on a Ray cluster, and where they run."""

    ray: str = setting(
        "",
        PLACEMENT,
        "Address of the Ray cluster: auto or HOST:PORT on one of its nodes, ray://HOST:10001 from elsewhere.",
        "ADDRESS",
    )
    replicas: int = setting(
        1, PLACEMENT, "Number of workers on the cluster; the least number with --max-replicas.", ge=0, le=256
    )
    max_replicas: int = setting(
        0, PLACEMENT, "Maximum number of workers, up to which it follows the queue; 0 keeps it fixed.", ge=0, le=256
    )
    target_queue: float = setting(
        4.0, PLACEMENT, "Waiting sequences for each worker above which there are more workers.", ge=0, le=1 << 20
    )
    scale_down_s: float = setting(
        300.0,
        PLACEMENT,
        "Seconds for which the load must fit into fewer workers, before there is one less.",
        ge=0,
        le=86400,
    )
    resources: str = setting(
        '{"CPU": 1}',
        PLACEMENT,
        "What a worker needs of its machine, as Ray counts it: a JSON object of CPU, GPU, memory (bytes) and the "
        "cluster's own resources.",
        "JSON",
    )
    scale_name: str = setting(
        "ray", PLACEMENT, "Beginning of the workers' names, which tells the workers of several models apart.", "NAME"
    )
