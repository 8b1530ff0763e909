"""Errors of the hub and its cache: each has one cause, and a text with the next step."""

import errno
from collections.abc import Iterator
from enum import StrEnum

from protocol.hub_id import HubId
from workers.errors import LoadRefused


class HubCause(StrEnum):
    """Why a model could not be had from the hub or its cache."""

    OFFLINE = "offline mode"
    NO_NETWORK = "no network"
    NOT_A_HUB = "not a hub"
    HUB_FAILED = "hub failed"
    RATE_LIMITED = "rate limited"
    NOT_FOUND = "not found"
    UNAUTHORIZED = "unauthorized"
    GATED = "gated"
    REVISION_NOT_FOUND = "revision not found"
    DISABLED = "disabled"
    NO_CHECKPOINT = "no checkpoint"
    DISK_FULL = "disk full"
    NOT_WRITABLE = "cache not writable"
    INCOMPLETE = "incomplete"
    UNKNOWN = "unknown"


class HubError(LoadRefused):
    """Raised if a model cannot be had from the hub or its cache. The text begins with the cause."""

    def __init__(self, cause: HubCause, text: str) -> None:
        self.cause = cause
        super().__init__(f"{cause}: {text}")


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 401, 403, 404, 429


def explain(error: Exception, model: HubId, endpoint: str, folder: str) -> HubError:
    """Return the cause of an error of `huggingface_hub` with the hub at `endpoint` and the cache in `folder`."""
    chain = list(_chain(error))
    return _of_the_cache(chain, model, folder) or _of_the_hub(chain, model, endpoint) or _other(chain, model, endpoint)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from; the library wraps most of its errors."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _of_the_cache(chain: list[BaseException], model: HubId, folder: str) -> HubError | None:
    from huggingface_hub import errors

    for each in chain:
        match each:
            case errors.OfflineModeIsEnabled():
                return HubError(
                    HubCause.OFFLINE,
                    f"HF_HUB_OFFLINE forbids asking the hub for {model}; unset it, or copy all files of the model into "
                    f"the cache {folder}",
                )
            case OSError(errno=int(number)) if number in _NO_SPACE:
                return disk_full(model, folder)
            case OSError(errno=int(number)) if number in _NO_ACCESS:
                return HubError(
                    HubCause.NOT_WRITABLE,
                    f"{model} cannot be kept in {each.filename or folder}: {each.strerror}; set HF_HOME to a folder "
                    "that can be written",
                )
    if any(isinstance(each, errors.IncompleteSnapshotError | errors.CorruptedCacheException) for each in chain):
        return incomplete(model, _first_line(chain[0]))
    return None


def _of_the_hub(chain: list[BaseException], model: HubId, endpoint: str) -> HubError | None:
    from huggingface_hub import errors

    for each in chain:
        match each:
            case errors.GatedRepoError():
                return HubError(
                    HubCause.GATED,
                    f"{model} may be downloaded only after its license is accepted: accept it on {endpoint}/"
                    f"{model.repo}, then `hf auth login`, or set HF_TOKEN, with that account",
                )
            case errors.RevisionNotFoundError():
                return HubError(
                    HubCause.REVISION_NOT_FOUND,
                    f"{model.repo} has no revision {model.revision or 'main'}; {endpoint}/{model.repo}/tree/main lists "
                    "its branches and tags",
                )
            case errors.DisabledRepoError():
                return HubError(HubCause.DISABLED, f"the hub has disabled access to {model}; choose another model")
            case errors.HfHubHTTPError():
                return _of_status(each, model, endpoint, known=isinstance(each, errors.RepositoryNotFoundError))
            case errors.FileMetadataError():
                return not_a_hub(endpoint, _first_line(each))
            case errors.HTTPError():  # type: ignore[attr-defined]  # of the transport
                return _no_network(model, endpoint, each)
    return None


def _of_status(error: Exception, model: HubId, endpoint: str, *, known: bool) -> HubError:
    """`known`: whether the answer is the hub's own about a repository that is not there or not shown."""
    answer = error.response  # type: ignore[attr-defined]
    status = answer.status_code
    if status == _TOO_MANY:
        after = answer.headers.get("retry-after")
        when = f"in {after} s" if after else "in some minutes"
        return HubError(
            HubCause.RATE_LIMITED,
            f"{endpoint} refuses further requests for now; try again {when}, or log in with `hf auth login` for a "
            "higher limit",
        )
    if status == _UNAUTHORIZED and "Invalid credentials" in (answer.headers.get("x-error-message") or ""):
        return HubError(
            HubCause.UNAUTHORIZED,
            f"the hub does not know the token that it was sent for {model}; log in again with `hf auth login`, or "
            "correct HF_TOKEN",
        )
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return HubError(
            HubCause.UNAUTHORIZED,
            f"the hub does not show {model} to you ({status}): it is private, or its name is wrong; check the name, or "
            "`hf auth login`, or set HF_TOKEN, with an account that may read it",
        )
    if known:
        return HubError(
            HubCause.NOT_FOUND, f"{endpoint} has no model {model.repo}, or hides it from your account; check the name"
        )
    if status == _NOT_FOUND:
        return not_a_hub(endpoint, f"it answers {status} for {answer.url}")
    return HubError(
        HubCause.HUB_FAILED,
        f"{endpoint} answered {status} for {model}; try again later (https://status.huggingface.co)",
    )


def _other(chain: list[BaseException], model: HubId, endpoint: str) -> HubError:
    from huggingface_hub import errors

    for each in chain:
        if isinstance(each, ValueError | KeyError | TypeError | AssertionError):  # an answer that is not the API's
            return not_a_hub(endpoint, "its answer is not one of the hub's API")
        if isinstance(each, OSError) and "Consistency check failed" in str(each):
            return incomplete(model, "a file arrived with another size than the hub states")
        if isinstance(each, ConnectionError | TimeoutError | errors.LocalEntryNotFoundError):
            return _no_network(model, endpoint, each)
    return HubError(HubCause.UNKNOWN, f"{model}: {_first_line(chain[0])}")


def _no_network(model: HubId, endpoint: str, error: BaseException) -> HubError:
    return HubError(
        HubCause.NO_NETWORK,
        f"{endpoint} cannot be reached for {model} ({_first_line(error)}); check the network and HTTPS_PROXY, "
        "then repeat the command: files that are complete are kept",
    )


def not_a_hub(endpoint: str, problem: str) -> HubError:
    """Return the error about a server that does not speak the hub's API."""
    return HubError(
        HubCause.NOT_A_HUB,
        f"{endpoint} is not a Hugging Face hub: {problem}; check HF_ENDPOINT, and unset it for the hub",
    )


def incomplete(model: HubId, problem: str) -> HubError:
    """Return the error about a model that is in the cache only in part, or damaged."""
    return HubError(
        HubCause.INCOMPLETE,
        f"{problem}; `baton pull {model}` downloads what is missing, and after `baton rm {model}` everything",
    )


def disk_full(model: HubId, folder: str, needed: int = 0, free: int = 0) -> HubError:
    """Return the error about a disk without room; `needed` and `free` bytes, if they are known."""
    counts = f" needs {needed:,} bytes and there are {free:,}" if needed else " does not fit"
    return HubError(
        HubCause.DISK_FULL,
        f"{model}{counts} on the disk of {folder}; `baton list` and `baton rm` make room, and HF_HOME names another "
        "folder",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
