"""`keep_alive`: how long the models of Ollama's clients stay loaded."""

import math
import re

import structlog

from actors.actor import ActorStopped, AskFailed, AskTimeout, Ref, TooManyAsks
from actors.mailbox import MailboxFull
from gateway.errors import RequestError, invalid
from gateway.models.messages import KeepAlive, LoaderMessage, LoadModel, ModelFailed
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = "([0-9]{1,15}(?:\\.[0-9]{0,9})?)(ns|us|\u00b5s|ms|s|m|h)"
_DURATION = re.compile(f"-?(?:{_PART})+")
MAX_KEEP_ALIVE_S = 10 * 365 * 86400.0
"""A longer one means never."""

_log = structlog.get_logger("gateway.ollama.residence")


def keep_alive_s(given: str | float | None) -> float | None:
    """The seconds of a `keep_alive`: a number of seconds, or a duration as Go writes it; infinite if it is negative.
    None if none is given. Raises `RequestError`."""
    if given is None or given == "":
        return None
    if not isinstance(given, str):
        seconds = given
    elif re.fullmatch("-?[0-9]{1,15}", given):
        seconds = float(given)
    elif _DURATION.fullmatch(given):
        seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, given))
        seconds = -seconds if given.startswith("-") else seconds
    else:
        raise invalid("keep_alive", '`keep_alive` is a number of seconds, or a text such as "5m" or "1h30m"')
    return seconds if 0 <= seconds <= MAX_KEEP_ALIVE_S else math.inf


class ModelResidence:
    """Passes on how long models stay loaded."""

    def __init__(self, models: Ref[LoaderMessage] | None, settings: GatewaySettings) -> None:
        self._models = models
        self._wait_s = settings.request_timeout_s
        self._retry_after_s = settings.retry_after_s

    def keep(self, model: str, seconds: float) -> None:
        """Unload a model after so many seconds without a request."""
        if self._models is not None:
            try:
                self._models.tell(KeepAlive(model, seconds))
            except (ActorStopped, MailboxFull) as error:  # the request goes on
                _log.warning("keep_alive_ignored", model=model, reason=str(error))

    async def change(self, model: str, seconds: float | None) -> None:
        """Load a model and keep it so long, or unload it if that is 0. Raises `RequestError`."""
        if seconds is not None:
            self.keep(model, seconds)
        if self._models is None or seconds == 0:
            return
        try:
            await self._models.ask(lambda reply: LoadModel(model, reply), timeout=self._wait_s)
        except KeyError:
            return  # one of remote workers alone
        except ModelFailed as error:
            raise self._error(ErrorCode.UNAVAILABLE, str(error)) from error
        except AskTimeout as error:
            text = f"model {model!r} was not loaded within {self._wait_s:g} s"
            raise self._error(ErrorCode.DEADLINE, text) from error
        except (TooManyAsks, MailboxFull) as error:
            raise self._error(ErrorCode.OVERLOADED, "too many clients wait for models to be loaded") from error
        except (ActorStopped, AskFailed) as error:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down") from error

    def _error(self, code: ErrorCode, text: str) -> RequestError:
        return RequestError(code, text, retry_after_s=self._retry_after_s)
