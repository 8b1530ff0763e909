"""Loads and unloads adapters by requests, with vLLM's routes, fields and status codes.

vLLM: https://docs.vllm.ai/en/latest/features/lora/#dynamically-serving-lora-adapters
"""

import asyncio
import shutil
from functools import partial
from typing import Annotated

import anyio
import anyio.to_thread
import structlog
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.admin.adapters.adapter_files import AdapterFiles, AdapterPathRefused
from gateway.admin.adapters.adapter_sources import AdapterFetchFailed, AdapterSources, FetchAdapter
from gateway.admin.adapters.adapter_state import MAX_KEPT, AdapterState, KeptAdapter
from gateway.errors import RefusalCode, RequestError
from gateway.http.access.auth import LOAD_ADAPTER, UNLOAD_ADAPTER
from gateway.http.small_body import small_body
from gateway.routing.adapters.loads import AdapterRefused
from gateway.routing.adapters.registry import MAX_ADAPTER_NAME, AdapterVersion
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_ADAPTERS, Label
from protocol.errors import ErrorCode

Text = Annotated[str, Meta(max_length=4096)]
HOLD_S = 1.0
"""Between two attempts to lock `lora_state_dir`, which a predecessor has until it ends."""
MAX_LOADS = MAX_ADAPTERS
"""Loads of all models at once, before further ones are refused with 503."""
TAKEN = "is the name of a model or of its adapter"

_log = structlog.get_logger("gateway.admin.adapters.adapter_routes")


class LoadLoraAdapter(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/load_lora_adapter`."""

    lora_name: Text = ""
    lora_path: Text = ""
    load_inplace: bool = False
    """Take the name from an adapter that has it."""
    model: Label = ""
    """The model that it is applied to; may be left out where there is one. An addition to vLLM's fields."""


class UnloadLoraAdapter(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/unload_lora_adapter`."""

    lora_name: Text = ""
    lora_int_id: int | None = None
    """vLLM's number of the adapter, which it ignores as well."""


class AdapterRoutes:
    """The routes, which are there if the settings have `lora_dirs` or `allow_lora_repos`. They need what changes under
    `/admin` need."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        fetch: FetchAdapter | None = None,
        *,
        predecessor: int = 0,
    ) -> None:
        """With `lora_state_dir`, the adapters that an earlier gateway has kept there are loaded. The process of the
        `predecessor` that this one takes over from, 0 for none, may use the folder still. `fetch` has adapters from the
        hub; without it there are none. Raises `AdapterStateInvalid`."""
        self._router = router
        self._settings = settings
        folder = settings.lora_state_dir
        self._state = AdapterState(folder, predecessor=predecessor) if folder else None
        self._files = AdapterFiles(settings.lora_dirs, None if self._state is None else self._state.folder)
        self._sources = AdapterSources(self._files, settings.allow_lora_repos, fetch)
        self._copying = anyio.Lock()
        self._writing = anyio.Lock()
        self._loading: set[str] = set()
        """The names of adapters that are being loaded: one that takes long holds no others up."""
        self._deletions: set[asyncio.Future[None]] = set()
        """Copies that threads delete."""
        router.adapters.forgotten = self._forgotten
        if self._state is not None:
            self._restore(self._state)
            self._hold(self._state)

    def routes(self) -> list[Route]:
        """The routes."""
        if not self._settings.lora_dirs and not self._settings.allow_lora_repos:
            return []
        return [
            Route(LOAD_ADAPTER, self.load, methods=["POST"]),
            Route(UNLOAD_ADAPTER, self.unload, methods=["POST"]),
        ]

    async def load(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter`: answers when all workers of the model have loaded the adapter."""
        wanted = await small_body(request, LoadLoraAdapter, self._settings.body_timeout_s)
        model = self._model(wanted)
        self._check_name(wanted)
        self._loading.add(wanted.lora_name)
        try:
            await self._load(wanted, model)
        except AdapterPathRefused as refused:
            if refused.unavailable:
                raise RequestError(ErrorCode.UNAVAILABLE, str(refused)) from refused
            code = RefusalCode.NOT_FOUND if refused.missing else ErrorCode.INVALID
            raise RequestError(code, f"lora_path: {refused}", field="lora_path") from refused
        except AdapterFetchFailed as failed:
            code = RefusalCode.NOT_FOUND if failed.missing else ErrorCode.INVALID
            code = ErrorCode.UNAVAILABLE if failed.unavailable else code
            raise RequestError(code, f"lora_path: {failed}", field="lora_path") from failed
        except AdapterRefused as refused:
            code = ErrorCode.UNAVAILABLE if refused.unavailable else ErrorCode.INVALID
            raise RequestError(code, str(refused), field=None if refused.unavailable else "lora_path") from refused
        finally:
            self._loading.discard(wanted.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{wanted.lora_name}' added successfully.")

    async def _load(self, wanted: LoadLoraAdapter, model: str) -> None:
        adapters = self._router.adapters
        found = await self._sources.find(wanted.lora_path)  # before it matters whether a worker is ready
        adapters.places(model)
        async with self._copying:
            digest, paths = await anyio.to_thread.run_sync(self._files.copy, found.directory, found.below)
        try:
            await adapters.load(wanted.lora_name, model, digest, paths)
            if self._state is not None:
                self._state.add(KeptAdapter(wanted.lora_name, model, digest, paths[-1]))
                await self._write(self._state, f"{wanted.lora_name!r} is loaded, and will not be after a restart")
        finally:
            self._files.release(digest)
            self._remove_unused(digest)

    async def unload(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter`: requests that have the adapter are still answered with it."""
        wanted = await small_body(request, UnloadLoraAdapter, self._settings.body_timeout_s)
        name = wanted.lora_name
        if not name:
            raise RequestError(ErrorCode.INVALID, "give the name of an adapter", field="lora_name")
        unloaded = self._router.adapters.unload(name)
        if self._state is not None and self._state.has(name):
            self._state.discard(name)
            unloaded = True  # also one that no worker could load again
            await self._write(self._state, f"{name!r} is unloaded, and will be loaded again after a restart")
        if not unloaded:
            if (model := self._router.pool.parent(name)) is not None:
                text = f"adapter {name[:128]!r} was loaded with {model!r}, by --lora-modules, and stays"
                raise RequestError(ErrorCode.INVALID, text, field="lora_name")
            text = f"there is no adapter {name[:128]!r}"
            raise RequestError(RefusalCode.MODEL_NOT_FOUND, text, field="lora_name")
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    def _model(self, wanted: LoadLoraAdapter) -> str:
        """Return the own name of the model that an adapter is for. Raises `RequestError`."""
        models = self._router.models.names()
        if not wanted.model:
            if len(models) != 1:
                text = f"give the model that it is for, one of {', '.join(map(repr, models)) or 'none'}"
                raise RequestError(ErrorCode.INVALID, text, field="model")
            return models[0]
        model = self._router.pool.catalog.canonical(wanted.model)
        if model not in models:
            raise self._router.models.no_model(wanted.model)
        return model

    def _check_name(self, wanted: LoadLoraAdapter) -> None:
        """Raises `RequestError` for a name that is taken, and for an invalid one."""
        name, pool = wanted.lora_name, self._router.pool
        if not name or len(name) > MAX_ADAPTER_NAME or not name.isprintable():
            text = f"give a name of up to {MAX_ADAPTER_NAME} printable characters"
            raise RequestError(ErrorCode.INVALID, text, field="lora_name")
        if len(self._loading) >= MAX_LOADS:
            raise RequestError(ErrorCode.UNAVAILABLE, f"{MAX_LOADS} adapters are being loaded: try again later")
        if self._state is not None and not self._state.has_room(name):
            text = f"`lora_state_dir` has {MAX_KEPT} adapters, those of other models included: unload one"
            raise RequestError(ErrorCode.INVALID, text, field="lora_name")
        if name in self._loading:
            raise RequestError(ErrorCode.UNAVAILABLE, f"an adapter {name!r} is being loaded", field="lora_name")
        if pool.runtime.version(name) is not None:
            if not wanted.load_inplace:
                text = f"an adapter {name!r} is loaded already: set load_inplace to replace it"
                raise RequestError(ErrorCode.INVALID, text, field="lora_name")
        elif self._is_taken(name):
            raise RequestError(ErrorCode.INVALID, f"{name!r} {TAKEN}", field="lora_name")

    def _is_taken(self, name: str) -> bool:
        """A model, or an adapter that was loaded with one, has the name."""
        own = self._router.models.canonical(name)
        return own in self._router.models.names() or self._router.pool.catalog.find(own) is not None

    def _restore(self, state: AdapterState) -> None:
        """Want the adapters that were kept: workers load them before they get their requests."""
        self._files.sweep(each.digest for each in state.adapters)
        for each in state.adapters:
            paths = (str(self._files.copy_of(each.digest)), each.path)
            problem = f"its name {TAKEN}: unload it, or rename the other one" if self._is_taken(each.name) else ""
            if not problem and not self._router.adapters.restore(each.name, each.model, each.digest, paths):
                problem = f"{MAX_ADAPTERS} adapters of its model are kept: unload some"
            if problem:
                _log.warning("adapter_not_restored", adapter=each.name, model=each.model, problem=problem)
            else:
                _log.info("adapter_restored", adapter=each.name, model=each.model, digest=each.digest)

    def _hold(self, state: AdapterState) -> None:
        """Lock the folder as soon as the predecessor has ended, which may take an hour."""
        try:
            held = state.hold()
        except OSError:  # what it is, the next write says
            held = False
        if not held:
            asyncio.get_running_loop().call_later(HOLD_S, self._hold, state)

    async def _write(self, state: AdapterState, effect: str) -> None:
        """Write the state as it is now. Raises `RequestError`, which says the `effect` of a failure."""
        try:
            async with self._writing:
                await anyio.to_thread.run_sync(state.write, state.adapters)
        except OSError as error:
            _log.error("adapter_state_not_written", problem=str(error))
            text = f"{effect}: `lora_state_dir` cannot be written: {error.strerror}"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from error

    def _forgotten(self, version: AdapterVersion) -> None:
        self._remove_unused(version.digest)

    def _remove_unused(self, digest: str) -> None:
        kept = self._state is not None and self._state.uses(digest)
        if not kept and not any(digest == wire.rpartition("@")[2] for wire in self._router.pool.runtime.wires()):
            try:
                gone = self._files.remove(digest)
            except OSError as error:  # it stays in the folder, and is swept at the next start
                _log.warning("adapter_copy_left", digest=digest, problem=str(error))
                return
            if gone is not None:
                deletion = asyncio.get_running_loop().run_in_executor(None, partial(shutil.rmtree, gone, True))
                self._deletions.add(deletion)
                deletion.add_done_callback(self._deletions.discard)
