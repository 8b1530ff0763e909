"""Operations as scripts of steps: drain, restart, rolling restart, reload."""

from gateway.fleet.member import Member
from gateway.fleet.operation import OperationFailed
from gateway.fleet.rolling_restart import RollingRestart
from gateway.fleet.steps import Steps
from gateway.models.messages import ModelStays
from gateway.routing.worker_pool import WorkerPool


async def drain_one(steps: Steps, member: Member) -> None:
    """Stop a worker for good; what it has finishes, or goes to other workers."""
    await steps.drain(member)
    steps.keep_stopped(member)
    steps.report(f"{member.name} is drained and stopped")


async def remove_remote(steps: Steps, member: Member) -> None:
    """Drain a worker of another machine and forget it. Raises `OperationFailed` for one of this machine."""
    if not member.remote:
        raise OperationFailed(f"{member.name} is a worker of the gateway's own machine: drain it instead")
    await steps.remove(member)
    steps.report(f"{member.name} is drained and removed: it may join no more")


async def restart_all(steps: Steps, members: list[Member]) -> None:
    """Let workers start again in their places, one after the other: with less capacity meanwhile, and for a while none
    where there is one worker, but without the memory for another."""
    for member in members:
        await steps.restart(member)


async def replace_all(steps: Steps, pool: WorkerPool, models: list[str], checkpoint: str) -> None:
    """Restart every worker of these models, with its old checkpoint or another, and lose no request and, where memory
    allows, no capacity: each is replaced by one that is ready before it drains. Those of other machines leave one after
    the other, and may join again when they serve the same checkpoint."""
    for model in models:
        if _is_absent(pool, model):
            await _use_later(steps, model, checkpoint)
            continue
        await RollingRestart(steps, pool, model).run(checkpoint)
        for member in [each for each in steps.members.values() if each.remote and each.model == model]:
            if not checkpoint:
                await steps.restart(member)
                continue
            await steps.dismiss(member)
            steps.report(f"{member.name} has left: it may join again with the same checkpoint")


async def change_model(steps: Steps, change: str, model: str) -> None:
    """Load, unload or reload a model. A reload waits for its streams within the grace, and then moves them; an unload
    has nowhere to move them to."""
    match change:
        case "load":
            await steps.load(model)
        case "unload":
            await steps.unload(model, again=False)
        case _:
            try:
                await steps.unload(model, again=True)
            except ModelStays:
                steps.report(f"the streams of {model} have not ended in time: they go on when it is loaded again")
                await steps.exchange(model)
    steps.report(f"{model} is {change}ed")


def _is_absent(pool: WorkerPool, model: str) -> bool:
    """True for a model that none of its workers has loaded, until a request needs it."""
    entry = pool.catalog.find(model)
    return entry is not None and entry.absent


async def _use_later(steps: Steps, model: str, checkpoint: str) -> None:
    """Let the workers of a model that is not loaded serve another checkpoint when it is."""
    for member in [each for each in steps.members.values() if each.model == model and not each.remote]:
        if checkpoint:
            steps.use(member, await steps.command(member, member.name, checkpoint), checkpoint)
    steps.report(f"{model} is not loaded" + (f": it will be loaded from {checkpoint}" if checkpoint else ""))
