"""The queues of a runtime: those of its workflows' steps, and that of its terminal hook."""

from __future__ import annotations

__all__ = ["SEPARATOR", "hook_queue", "label", "queue_of", "workflow_of"]

SEPARATOR = "@"


def label(workflow: str | None, revision: str | None) -> str:
    """How a workflow and revision are written."""
    if workflow is None:
        return "the default workflow"
    return workflow if revision is None else f"{workflow}{SEPARATOR}{revision}"


def queue_of(base: str, workflow: str | None, revision: str | None) -> str:
    """The queue that holds the steps of a workflow."""
    return base if workflow is None else f"{base}{SEPARATOR}{label(workflow, revision)}"


def workflow_of(queue: str) -> tuple[str | None, str | None]:
    """Workflow and revision whose steps a queue holds."""
    _, _, name = queue.partition(SEPARATOR)
    workflow, _, revision = name.partition(SEPARATOR)
    return workflow or None, revision or None


def hook_queue(base: str) -> str:
    """The queue of the terminal hook's jobs; a workflow without a name has no such revision."""
    return f"{base}{SEPARATOR}{SEPARATOR}hook"
