"""Several workflows, and several revisions of one, in one runtime.

The steps of a named workflow are on a queue of their own, so that a worker claims only what it
can run, and what nobody can run holds up nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from taquba._checks import plain, shown, whole, wrong_type
from taquba.errors import InvalidArgument, InvalidType, UnknownWorkflow
from taquba.workflow._hooks import Hook, TerminalHook, TerminalHookFunction, adapt_hook
from taquba.workflow._memo import MAX_INLINE_MEMO_SIZE, MEMO_INLINE_LIMIT
from taquba.workflow._queues import SEPARATOR, label, queue_of, workflow_of
from taquba.workflow._runner import CallRunner, Runner, adapt

__all__ = [
    "MAX_REVISION_LENGTH",
    "MAX_WORKFLOW_NAME_LENGTH",
    "Registry",
    "Workflow",
    "WorkflowBacklog",
    "check_base",
    "choose",
]

MAX_WORKFLOW_NAME_LENGTH = 64
"""Characters of a workflow's name."""
MAX_REVISION_LENGTH = 64
"""Characters of a revision."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_MOST_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Workflow:
    """A runner, and the name and revision of the runs that it runs.

    A run keeps the name and the revision that it was submitted with, to its end. It is run by
    the workflow of that name and revision, or by one that accepts them.
    """

    name: str
    """1 to 64 characters of ``A-Z a-z 0-9 _ . -``."""
    runner: Runner
    """As for `WorkflowRuntime`."""
    revision: str | None = None
    """Of the code, in the form of a name. Change it when runs that are under way could not go on
    with the new code."""
    accepts: Sequence[str] = ()
    """Other runs that this runner can go on with: ``"name@revision"``, or ``"name"`` for those
    without a revision."""
    weight: int = 1
    """Share of the runtime's steps, while several workflows have some waiting."""


@dataclass(frozen=True, slots=True)
class WorkflowBacklog:
    """The unfinished runs of one workflow and revision."""

    workflow: str | None
    """None for runs that were submitted without a workflow's name."""
    revision: str | None
    runs: int
    """How many have not ended."""
    oldest: datetime
    """When the first of them was submitted."""
    runnable: bool
    """Whether a runtime of this process runs them. The others wait until one does."""


def check_base(queue_name: object) -> None:
    """Refuse a runtime's queue name that could be the queue of a workflow."""
    if not isinstance(queue_name, str):
        raise wrong_type("a queue name must be a str", queue_name)
    if SEPARATOR in queue_name:
        raise InvalidArgument(
            f"queue_name is {queue_name!r}: it must not contain {SEPARATOR!r}, which separates it "
            "from the names of workflows"
        )


def check_workflow(workflow: object, revision: object) -> tuple[str, str | None]:
    """A workflow's name and revision, if they are.

    Raises:
        InvalidArgument: They are not.
    """
    name = _checked(workflow, "a workflow's name", MAX_WORKFLOW_NAME_LENGTH)
    if revision is None:
        return name, None
    return name, _checked(revision, "a revision", MAX_REVISION_LENGTH)


def _checked(text: object, what: str, limit: int) -> str:
    if not isinstance(text, str):
        raise wrong_type(f"{what} must be a str", text)
    if len(text) > limit or not _NAME.fullmatch(text):
        raise InvalidArgument(
            f"{what} has 1 to {limit} characters of A-Z a-z 0-9 _ . -, which {shown(text)} has not"
        )
    return plain(text)


class Registry:
    """What one runtime runs."""

    def __init__(
        self,
        base: str,
        runner: Runner | None,
        workflows: Iterable[Workflow],
        terminal_hook: TerminalHook | TerminalHookFunction | None,
        *,
        concurrency: int,
        memo_inline_limit: int | None = MEMO_INLINE_LIMIT,
    ) -> None:
        if memo_inline_limit is not None:
            whole(memo_inline_limit, "memo_inline_limit", 0, MAX_INLINE_MEMO_SIZE)

        def adapted(runner: Runner) -> CallRunner:
            return adapt(runner, concurrency=concurrency, memo_inline_limit=memo_inline_limit)

        self._base = base
        self.calls: dict[str, CallRunner] = {}
        """By queue: what runs its steps."""
        self.weights: dict[str, int] = {}
        """The queues, and their shares of the steps."""
        self.newest: dict[str, str | None] = {}
        """By workflow: the revision that was registered last."""
        self.hook: Hook | None = (
            None if terminal_hook is None else adapt_hook(terminal_hook, concurrency=concurrency)
        )
        if runner is not None:
            self._add(base, adapted(runner), 1)
        wanted: object = workflows
        if isinstance(wanted, (str, bytes, Workflow, Mapping)) or not isinstance(wanted, Iterable):
            raise InvalidType("workflows must be a list of Workflow(name, runner, …)")
        for each in workflows:
            if not isinstance(each, Workflow):
                raise wrong_type("workflows must be a list of Workflow(name, runner, …)", each)
            name, revision = check_workflow(each.name, each.revision)
            weight = whole(each.weight, f"weight of workflow {name!r}", 1, _MOST_WEIGHT)
            call = adapted(each.runner)
            self.newest[name] = revision
            self._add(queue_of(base, name, revision), call, weight)
            accepts: object = each.accepts
            if isinstance(accepts, (str, bytes, Mapping)) or not isinstance(accepts, Iterable):
                raise InvalidType(f"accepts of workflow {name!r} must be a list of str")
            for accepted in each.accepts:
                self._add(queue_of(base, *_accepted(accepted)), call, weight)

    def _add(self, queue: str, call: CallRunner, weight: int) -> None:
        if queue in self.calls:
            raise InvalidArgument(
                f"{label(*workflow_of(queue))} is registered twice: give each runner a name or a "
                "revision of its own, and let one of them accept what was before"
            )
        self.calls[queue] = call
        self.weights[queue] = weight


def _accepted(text: object) -> tuple[str, str | None]:
    if not isinstance(text, str):
        raise wrong_type("what a workflow accepts must be a str", text)
    name, separator, revision = text.partition(SEPARATOR)
    return check_workflow(name, revision if separator else None)


def choose(
    workflow: str | None,
    revision: str | None,
    newest: Mapping[str, str | None],
    runnable: Mapping[str, int],
    base: str,
) -> tuple[str | None, str | None]:
    """The workflow and revision that a run is to be submitted with.

    Args:
        workflow: As the caller said.
        revision: As the caller said; None is the newest one.
        newest: By workflow, what was registered last.
        runnable: The queues that somebody in this process works on.
        base: The runtime's own queue.

    Raises:
        UnknownWorkflow: Runtimes of this process run workflows, and this is none of them.
        InvalidArgument: It has a revision but no name, or a name that is none.
    """
    if workflow is None:
        if revision is not None:
            raise InvalidArgument("a revision belongs to a workflow: pass workflow=… too")
        chosen: tuple[str | None, str | None] = (None, None)
    else:
        name, checked = check_workflow(workflow, revision)
        chosen = (name, newest.get(name) if checked is None else checked)
    if runnable and queue_of(base, *chosen) not in runnable:
        known = ", ".join(sorted(label(*workflow_of(queue)) for queue in runnable))
        raise UnknownWorkflow(
            f"nobody here runs {label(*chosen)}, and the run would wait for ever; there is: {known}"
            + ("; say which one with workflow=…" if workflow is None else "")
        )
    return chosen
