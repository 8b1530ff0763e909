"""The gateway as an ASGI app."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from actors.actor import Ref
from actors.transport.log_limit import LogLimit
from gateway.admin.adapters.adapter_routes import AdapterRoutes
from gateway.admin.adapters.adapter_sources import FetchAdapter
from gateway.admin.endpoints import Admin, KeyAdmin
from gateway.admin.joining import TokenAdmin
from gateway.admin.kill import WorkerKill
from gateway.admin.live import LIVE_PATH, LiveEndpoint
from gateway.admin.page_files import PageFiles
from gateway.admin.status import Status
from gateway.admin.tls_reload import TlsReload
from gateway.anthropic.dialect import anthropic_dialect
from gateway.fleet.messages import FleetMessage
from gateway.fleet.remote_join import RemoteJoin
from gateway.http.access.auth import AuthMiddleware
from gateway.http.access.gateways import TrustedGateways
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.http.error_handlers import ErrorHandlers
from gateway.http.request_record import RequestRecords
from gateway.http.tls import Tls
from gateway.images.loading import ImageLoader
from gateway.keys.api_keys import ApiKeys
from gateway.models.messages import LoaderMessage
from gateway.ollama.dialect import ollama_dialect
from gateway.openai.dialect import openai_dialect
from gateway.openapi.endpoint import OpenApiEndpoint
from gateway.responses.dialect import responses_dialect
from gateway.responses.service import ResponseService
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect, StatefulDecode
from gateway.streaming.generate_endpoint import GenerateEndpoint, stateless
from gateway.streaming.image_inputs import ImageInputs
from gateway.streaming.moving.record_store import RecordStore
from gateway.streaming.moving.stream_mover import RecordedPath, StreamMover
from gateway.streaming.peer import PeerGateway
from gateway.streaming.query_endpoint import QueryEndpoint
from gateway.streaming.resumable import ResumableStreams
from gateway.streaming.resume_endpoint import STREAMS, ResumeEndpoint
from gateway.tracing.traced_request import RequestTraces


def create_app(
    router: Router,
    settings: GatewaySettings,
    fleet: Ref[FleetMessage] | None = None,
    streams: ResumableStreams | None = None,
    peer: PeerGateway | None = None,
    dialects: Sequence[Dialect] = (),
    keys: ApiKeys | None = None,
    responses: ResponseService | None = None,
    traces: RequestTraces | None = None,
    tls: Tls | None = None,
    models: Ref[LoaderMessage] | None = None,
    images: ImageLoader | None = None,
    joins: RemoteJoin | None = None,
    retired: Callable[[], bool] = lambda: False,
    records: RecordStore | None = None,
    fetch_adapter: FetchAdapter | None = None,
) -> AuthMiddleware:
    """Build the app over one router. It starts no task, and runs on any ASGI server.

    Without a `fleet` there are no routes that drain, restart or reload workers. `streams` are the kept streams; a
    `peer` may keep further ones. `dialects` are served beside those of Baton; OpenAI's conventions hold for all paths
    that are of none. `keys` are by default those of the settings; raises `ApiKeysInvalid` for them. `responses` keeps
    and generates stored responses; the default one has the store of the settings, and generates none in the background.
    `models` loads and unloads models; without it they stay as they are. `images` loads the images of requests; by
    default, as the settings have it.
    `traces` exports the traces of requests; `tls` is the certificate of the server, which a request can reload.
    `joins` makes tokens for workers that join; without it none can.
    `records` are those by which streams move between gateways; without them each stream ends with its gateway.
    `fetch_adapter` has adapters from the hub that `allow_lora_repos` allows. Raises `AdapterStateInvalid` for the
    `lora_state_dir` of the settings, whose adapters are loaded.
    `retired` tells whether clients have to connect anew; responses that have no end of their own then end.
    """
    openai = openai_dialect(router, settings)
    dialects = (
        responses_dialect(responses or ResponseService(settings), settings),
        anthropic_dialect(router, settings),
        ollama_dialect(router, settings, models),
        *dialects,
    )
    # On paths that several dialects have, a client sends its key in the header of its own.
    key_headers = tuple(header for each in dialects for header in each.conventions.key_headers)
    resuming = replace(openai.conventions, key_headers=key_headers)
    shared = dict.fromkeys((STREAMS.rstrip("/"), "/v1/models"), resuming)
    conventions = ConventionsByPath(openai.conventions, shared | _by_prefix(dialects))
    keys = ApiKeys(settings) if keys is None else keys
    router.metrics.watch_keys(keys.uses)
    status = Status(router, settings)
    live = LiveEndpoint(router, settings, openai.conventions, retired)
    streams = streams or ResumableStreams(settings, router.metrics, records)
    paths = {
        path: RecordedPath(decode, dialect.conventions)
        for dialect in (openai, *dialects)
        for path, decode in _decoders(dialect).items()
    }
    inputs = ImageInputs(router, images or ImageLoader(settings))
    mover = None if records is None else StreamMover(router, settings, streams, records, paths, inputs)
    resume = ResumeEndpoint(settings, streams, resuming, peer, mover)
    posted: dict[str, ASGIApp] = {
        path: GenerateEndpoint(router, settings, each.decode, each.conventions, resume, inputs)
        for path, each in paths.items()
    } | {
        path: QueryEndpoint(router, settings, ask, dialect.conventions, inputs)
        for dialect in (openai, *dialects)
        for path, ask in dialect.queries.items()
    }

    exact = [route for dialect in dialects for route in dialect.direct]

    def direct(method: str, path: str) -> ASGIApp | None:
        if method == "POST" and path in posted:
            return posted[path]
        if (method, path) == ("GET", LIVE_PATH):
            return live
        if path.startswith(STREAMS):
            return resume if method in ResumeEndpoint.METHODS else None
        return next(
            (route.endpoint for route in exact if method in (route.methods or ()) and route.path_regex.match(path)),
            None,
        )

    routes = [
        # Requests that these two allow go to `direct`; others get the allowed methods.
        *(Route(path, app, methods=["POST"]) for path, app in posted.items()),
        _with(Route(STREAMS + "{id:path}", resume), ResumeEndpoint.METHODS),
        # OpenAI's last: routes of others may be for requests with their own headers alone.
        *(route for dialect in (*dialects, openai) for route in (*dialect.routes, *dialect.direct)),
        *(Route(path, status.health) for path in ("/health", "/ping", "/v1/health")),
        Route("/health/live", status.live),
        Route("/health/ready", status.ready),
        Route("/version", status.version),
        Route("/metrics", status.metrics),
        Route("/admin/workers", status.workers),
        Route("/admin/models", status.models),
        Route("/admin/gateway", status.gateway),
        _with(Route(LIVE_PATH, live), ["GET"]),
        *WorkerKill(router, keys, settings).routes(),
        *TokenAdmin(joins, keys, settings).routes(),
        *KeyAdmin(keys, settings).routes(),
        *TlsReload(tls, settings).routes(),
        *(Admin(fleet, settings, router.models.canonical).routes() if fleet is not None else ()),
        *AdapterRoutes(router, settings, fetch_adapter, predecessor=0 if peer is None else peer.pid).routes(),
        *PageFiles(settings).routes(),
    ]
    routes.append(Route("/openapi.json", OpenApiEndpoint(routes).document))
    app = Starlette(routes=routes, exception_handlers=ErrorHandlers(conventions).by_type())
    # A redirect would be built from the client's own Host header.
    app.router.redirect_slashes = False
    gateways = TrustedGateways(settings)
    recorded = RequestRecords(routes, router.metrics.http_response, LogLimit(time.monotonic), traces, gateways)
    return AuthMiddleware(app, direct, settings, conventions, keys, recorded, gateways)


def _decoders(dialect: Dialect) -> dict[str, StatefulDecode]:
    return {path: stateless(decode) for path, decode in dialect.generation.items()} | dict(dialect.stateful)


def _by_prefix(dialects: Sequence[Dialect]) -> dict[str, HttpConventions]:
    return {
        prefix: dialect.conventions
        for dialect in dialects
        for prefix in (*dialect.generation, *dialect.stateful, *dialect.prefixes)
    }


def _with(route: Route, methods: Iterable[str]) -> Route:
    # The argument of a route would add HEAD to GET, which would take a stream from its reader and send nothing, or a
    # place from those who watch.
    route.methods = set(methods)
    return route
