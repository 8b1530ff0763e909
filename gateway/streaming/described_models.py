"""Waits for the features of models, for requests that depend on them."""

from collections.abc import Callable

import anyio

from gateway.errors import RequestError
from gateway.http.exchange import ClientGone, HttpExchange
from gateway.routing.router import Router
from gateway.streaming.dialect import Decoded
from gateway.streaming.key_limits import KeyGate


class DescribedModels:
    """Loads the models of requests whose bodies can be decoded only when the features of the model are known."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._gate = KeyGate(router)

    async def described(self, exchange: HttpExchange, model: str, decode: Callable[[], Decoded]) -> Decoded:
        """Return what `decode` returns once a worker has loaded the model. Raises `RequestError`, and `ClientGone` for
        a client that leaves meanwhile."""
        self._gate.check_model(exchange, model)
        refusal: RequestError | None = None
        described = False

        async def wait(_: anyio.CancelScope) -> None:
            nonlocal refusal, described
            try:
                await self._router.admission.described(model)
                described = True
            except RequestError as error:  # a task group would wrap it
                refusal = error

        await exchange.while_connected(wait)
        if refusal is not None:
            raise refusal
        if not described:
            raise ClientGone
        return decode()
