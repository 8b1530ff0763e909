"""The Responses API as a dialect."""

from gateway.http.conventions import HttpConventions
from gateway.responses.errors import ResponsesErrors
from gateway.responses.service import ResponseService
from gateway.streaming.dialect import Dialect

PATH = "/v1/responses"


def responses_dialect(service: ResponseService) -> Dialect:
    """The dialect over what the service stores."""
    return Dialect(
        conventions=HttpConventions(ResponsesErrors()),
        generation={},
        stateful={PATH: service.decode},
        prefixes=(PATH,),
    )
