"""Runs, looked at from any process."""

from __future__ import annotations

from typing import final

from taquba._checks import wrong_type
from taquba.queue import Follower, Queue, _validate
from taquba.workflow._reading import RunReader

__all__ = ["WorkflowView"]


@final
class WorkflowView(RunReader):
    """What a `WorkflowRuntime` says of its runs, in a process that does not own the store.

    It reads a `Follower`, so that what it shows is durable, and always the state at one
    moment of the past. Over an open `Queue` it shows what is, without a runtime. Where no
    runtime has ever been, there are no runs.

    Example:
        >>> import asyncio
        >>> from taquba import Follower, Queue
        >>> from taquba.objectstore import MemoryStore
        >>> from taquba.workflow import Step, Succeed, WorkflowRuntime, WorkflowView
        >>> async def runner(step: Step):
        ...     return Succeed()
        >>> async def main():
        ...     store = MemoryStore()          # or a URL, then from any other process
        ...     async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
        ...         await runtime.submit(b"", run_id="one")
        ...         await runtime.wait("one")
        ...         async with Follower.open(store) as follower:
        ...             page = await WorkflowView(follower).runs()
        ...     return [(run.run_id, run.state.value) for run in page.runs]
        >>> asyncio.run(main())
        [('one', 'terminated')]
    """

    def __init__(self, reader: Follower | Queue, *, queue_name: str = "workflow-steps") -> None:
        """Look at the runs of one queue name.

        Args:
            reader: An open `Follower`, or `Queue`.
            queue_name: That of the runtime.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        if not isinstance(reader, (Follower, Queue)):
            raise wrong_type("reader must be an open Follower or Queue", reader)
        self._reader = reader
        self._queue_name = _validate.queue_name(queue_name)
