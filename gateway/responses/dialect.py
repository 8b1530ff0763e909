"""The Responses API as a dialect."""

from gateway.http.conventions import HttpConventions
from gateway.responses.endpoints import ResponseEndpoints
from gateway.responses.errors import ResponsesErrors
from gateway.responses.service import ResponseService
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect

PATH = "/v1/responses"


def responses_dialect(service: ResponseService, settings: GatewaySettings) -> Dialect:
    """The dialect over what the service stores."""
    conventions = HttpConventions(ResponsesErrors())
    return Dialect(
        conventions=conventions,
        generation={},
        stateful={PATH: service.decode},
        direct=ResponseEndpoints(service, settings, conventions).routes(),
        prefixes=(PATH,),
    )
