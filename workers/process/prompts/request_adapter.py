"""The adapter that a request names."""

from collections.abc import Container

from protocol.commands import Submit, adapted_tenant


def adapter_refusal(submit: Submit, adapters: Container[str]) -> str:
    """Return why a request cannot have the adapter that it names; empty if it can.

    Its tenant must be one of the adapter, which keeps its cache rows apart.
    """
    if submit.adapter not in adapters:
        return f"this worker has no adapter {submit.adapter!r}"
    if not submit.tenant.endswith(adapted_tenant("", submit.adapter)):
        return f"the tenant is not one of the adapter {submit.adapter!r}"
    return ""
