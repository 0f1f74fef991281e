# pyright: basic, reportMissingImports=false
"""The handlers that Restate's side calls; hypercorn serves them, in a process of their own."""

from __future__ import annotations

import os

import restate

service = restate.Service("steps")
done = 0


def a_step() -> int:
    global done
    done += 1
    return 1


@service.handler()
async def run(ctx: restate.Context, count: int) -> int:
    return sum([await ctx.run_typed("a_step", a_step) for _ in range(count)])


@service.handler()
async def parent(ctx: restate.Context, count: int) -> int:
    calls = [ctx.service_call(run, 1) for _ in range(count)]
    return sum([await call for call in calls])


@service.handler()
async def pending(ctx: restate.Context) -> int:
    if not done:
        with open(os.environ["FIRST"], "w", encoding="ascii"):
            pass
    return a_step()


@service.handler()
async def steps_done(ctx: restate.Context) -> int:
    return done


app = restate.app([service])
