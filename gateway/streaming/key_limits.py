"""The limits of API keys, as they hold for the requests of all dialects."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from starlette.types import Scope

from gateway.body_budget import HeldBody
from gateway.errors import invalid
from gateway.generation.request import GenerationRequest
from gateway.http.access.request_key import models_for, request_key
from gateway.http.exchange import HttpExchange
from gateway.keys.account import Reservation
from gateway.keys.api_keys import ApiKey
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.streaming.token_charge import TokenCharge


def visible_models(router: Router, scope: Scope) -> list[str]:
    """Return the models that the key of a request may use, each followed by its adapters."""
    own = models_for(request_key(scope), router.models.names(), router.pool.catalog.aliases)
    return router.models.with_adapters(own)


class KeyGate:
    """Admits requests within the limits of their API keys, before the router does."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def check(self, exchange: HttpExchange) -> None:
        """Refuse a request before its body is read, if its key may send none now. Raises `RequestError`."""
        if exchange.api_key is not None:
            _state(exchange, exchange.api_key)
            exchange.api_key.account.check()

    def check_model(self, exchange: HttpExchange, model: str) -> None:
        """Raise `RequestError` for a model that the key may not use, which does not exist for it. `model` may be an
        alias."""
        key, router = exchange.api_key, self._router
        if key is not None and key.limits.models:
            visible = models_for(key, router.models.names(), router.pool.catalog.aliases)
            if router.models.canonical(model) not in visible:
                raise self._router.models.no_model(model, among=visible)

    def only_model(self, exchange: HttpExchange) -> str:
        """Return the only model that the key may use, for a body without one. Raises `RequestError` with the names of
        several."""
        router = self._router
        visible = models_for(exchange.api_key, router.models.names(), router.pool.catalog.aliases)
        if len(visible) == 1:
            return visible[0]
        names = ", ".join(map(repr, router.models.with_adapters(visible))) or "none"
        raise invalid("model", f"`model` is required, unless one model is served; available: {names}")

    def admit_query(self, exchange: HttpExchange, model: str) -> Reservation | None:
        """Admit a request that generates nothing; the caller settles it. None without a key. Raises `RequestError`."""
        self.check_model(exchange, model)
        key = exchange.api_key
        if key is None:
            return None
        with _stated(exchange, key):
            return key.account.admit()

    def open(
        self, exchange: HttpExchange, request: GenerationRequest, body: HeldBody, limits: RequestTimeLimits
    ) -> RequestGroup:
        """Admit a generation request here and in the router, within these time limits. It is settled when its last
        sequence has ended, however that comes about. Raises `RequestError`."""
        self.check_model(exchange, request.model)
        key, router = exchange.api_key, self._router
        request = router.models.resolved(request)
        if key is None:
            return router.admission.open(
                request,
                exchange.request_id,
                body,
                exchange.key,
                checked=False,
                fairness_id=exchange.fairness_id,
                limits=limits,
            )
        charge = TokenCharge(request, router.pool.context(request.model))
        with _stated(exchange, key):
            reservation = key.account.admit(charge.most(key.limits.tokens_per_minute or 0))
            try:
                group = router.admission.open(
                    request,
                    exchange.request_id,
                    body,
                    exchange.key,
                    client=exchange.client,
                    fairness_id=exchange.fairness_id,
                    limits=limits,
                )
            except BaseException:  # also a bug, after which the key would have a request less for ever
                reservation.withdraw()
                raise
        group.when_ended(partial(charge.settle, group, reservation))
        return group


@contextmanager
def _stated(exchange: HttpExchange, key: ApiKey) -> Iterator[None]:
    """Give the response the headers about the limits of the key, as they are at the end of the block."""
    try:
        yield
    finally:
        _state(exchange, key)


def _state(exchange: HttpExchange, key: ApiKey) -> None:
    exchange.limit_headers = exchange.conventions.limit_headers(key.account.states())
