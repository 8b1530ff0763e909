"""The files of the page at `/`: HTML, style and scripts, which are the same for everybody and need no key."""

import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import RefusalCode, RequestError
from gateway.http.access.auth import PAGE, PAGE_FILES
from gateway.settings import GatewaySettings

PAGE_RESUME_S = 60.0
"""Seconds for which an answer of the page is kept when its connection ends."""
MAX_BYTES = 120 * 1024
"""All files together are at most this large."""
INDEX = "index.html"
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_HEADERS = {
    # Scripts and styles are files of this server alone, and no text becomes HTML (Trusted Types).
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks whether its copy is current: after an update of the server, all files are of one version.
    "cache-control": "no-cache",
}


class PageFiles:
    """Serves the files, which are read once, with a strong ETag each."""

    def __init__(self, settings: GatewaySettings) -> None:
        resume_s = min(PAGE_RESUME_S, settings.resume_most_s)
        self.files: dict[str, bytes] = {}
        """Their contents by name."""
        for file in resources.files("gateway.admin").joinpath("page").iterdir():
            if file.name.rpartition(".")[2] in TYPES:
                self.files[file.name] = file.read_bytes()
        self.files[INDEX] = self.files[INDEX].replace(b"{{resume_s}}", f"{resume_s:g}".encode())
        self._etags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in self.files.items()}

    def routes(self) -> list[Route]:
        """The page, and its other files below `/page/`."""
        return [Route(PAGE, self.page), Route(PAGE_FILES + "{name}", self.page)]

    async def page(self, request: Request) -> Response:
        """`GET /` and `GET /page/{name}`: the file, or 304 for a browser that has it. Raises `RequestError`."""
        name = request.path_params.get("name", INDEX)
        if name not in self.files:
            raise RequestError(RefusalCode.NOT_FOUND, "the page has no such file")
        headers = _HEADERS | {"etag": self._etags[name]}
        if self._etags[name] in (each.strip() for each in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.files[name], headers=headers, media_type=TYPES[name.rpartition(".")[2]])
