"""The keys with which a worker connects: a join token until its own key is registered, then its own key. Pure."""

from actors.transport.keys import from_z85
from actors.transport.link import CurveKeys

NOT_ENROLLED = (
    "the gateway accepts neither the join token, which was used, was replaced or has expired, nor the worker's own key"
)
REVOKED = "the gateway does not accept the worker's key any more, and nothing else has it"


class JoinKeys:
    """Chooses the key of each connection, and when there is no point in trying again.

    The answer to a worker that has used its token may be lost. So until it was welcomed once, it tries the token and
    its own key in turn, and gives up when both were refused in a row.
    """

    def __init__(self, own: CurveKeys, token: CurveKeys | None = None, *, kept: bool = True) -> None:
        """`kept` is true for a key of a file, which an operator may allow again."""
        self._own = own
        self._token = token
        self._kept = kept
        self._with_token = token is not None
        self._enrolled = token is None
        self._refusals = 0

    @property
    def current(self) -> CurveKeys:
        """The keys of the next connection."""
        return self._token if self._with_token and self._token is not None else self._own

    @property
    def registers(self) -> str:
        """The public key that the next `Hello` registers; empty on a connection with the worker's own key."""
        return from_z85(self._own.public) if self._with_token else ""

    @property
    def own_text(self) -> str:
        """The worker's own public key, as people pass it on."""
        return from_z85(self._own.public)

    def welcomed(self) -> None:
        """Note that the gateway has let the worker join."""
        self._enrolled, self._with_token, self._refusals = True, False, 0

    def ended(self, *, refused: bool) -> str:
        """Note the end of a connection, which the gateway may have `refused` for its key. Returns why the worker should
        give up; empty if it should try again."""
        self._refusals = self._refusals + 1 if refused else 0
        if self._enrolled:
            return REVOKED if refused and not self._kept else ""
        self._with_token = not self._with_token
        return NOT_ENROLLED if self._refusals >= 2 else ""
