"""Starts processes fast: by forking one that has imported everything, and runs nothing.

Python and the clients of the clouds take a second to import, and the fault matrix needs
hundreds of processes. A child shares no state with another but what was imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
import warnings

from .plan import Plan

__all__ = ["serve"]


def serve(descriptor: int) -> None:
    """Fork a child for each plan that comes, until the other end is closed."""
    from . import workload

    for name in ("s3fs", "aiohttp", "botocore.session", "ulid"):
        __import__(name)
    with socket.socket(fileno=descriptor) as connection:
        connection.send(b"ready")
        while True:
            message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
            if not message:
                return
            if not streams:
                _, status = os.waitpid(int(message), 0)
                connection.send(b"%d" % os.waitstatus_to_exitcode(status))
                continue
            child = os.fork()
            if child == 0:
                connection.close()
                _become(streams)
                os._exit(_live(workload.main, Plan.from_json(message.decode())))
            for stream in streams:
                os.close(stream)
            connection.send(b"%d" % child)


def _become(streams: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the tests stops us, by the pipe
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


def _live(main: object, plan: Plan) -> int:
    warnings.simplefilter("error")
    try:
        return main(plan)  # type: ignore[operator]
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
