"""Finds the workers that may take a request, or the error that explains why none may."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire.errors import InvalidRequest, NotFound, QuireError, Unavailable
from quire.runners import GENERATE, POOLING, wrong_runner
from router.workers.base import Worker


def eligible(
    workers: Collection[Worker], ready: Collection[Worker], model: str, runner: str = GENERATE
) -> Sequence[Worker]:
    """The ready workers that serve `model` by this runner; the empty name stands for the only model there is.

    Args:
        ready: the ready ones among `workers`.

    Raises:
        NotFound: workers are known, and none serves the model.
        InvalidRequest: no model is named and there are several; or the model is served by the other runner.
        Unavailable: no worker that serves it is ready.
    """
    found = [worker for worker in ready if worker.runner == runner and worker.serves(model)]
    if found and (model or _serve_one_model(workers, runner)):
        return found
    raise _refusal(workers, model, runner)


def _serve_one_model(workers: Collection[Worker], runner: str) -> bool:
    """Whether the empty name is unambiguous."""
    return len({worker.names[0] for worker in workers if worker.runner == runner and worker.names}) == 1


def _refusal(workers: Collection[Worker], model: str, runner: str) -> QuireError:
    known = served_models(workers)
    if model and known and model not in known:
        return NotFound(
            f"The model {model!r} is not served here. Served: {', '.join(sorted(known))}.", parameter="model"
        )
    mine = served_models([worker for worker in workers if worker.runner == runner])
    if known and not (model in mine if model else mine):
        return wrong_runner(model or next(iter(known)), POOLING if runner == GENERATE else GENERATE)
    if not model and len(set(mine.values())) > 1:
        return InvalidRequest(f"Name one of the models: {', '.join(sorted(mine))}.", parameter="model")
    return Unavailable(_why_none(workers))


def served_models(workers: Collection[Worker]) -> dict[str, str]:
    """Maps each served name, of a model or an adapter, to the main name of its model."""
    return {name: worker.names[0] for worker in workers for name in worker.names}


def _why_none(workers: Collection[Worker]) -> str:
    if not workers:
        return "No engine worker is known. Start one that registers itself, or name it with --workers or --worker-dns."
    conditions = ((worker.address, worker.condition) for worker in workers)
    return "No engine worker is ready: " + "; ".join(
        f"{address} is {condition.state.value} ({condition.reason or 'it serves another model'})"
        for address, condition in conditions
    )
