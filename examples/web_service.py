"""A web service that starts runs, hands decisions to them, and tells what became of them.

One process has the store open: the service itself, which also runs the steps. Requests come back as
soon as what they did is durable, in one write to the store, and a client that got no answer can
send the same request again: the id of the order makes it one.

    $ python examples/web_service.py --demo
    POST /orders/7 -> 201 {"id": "7"}
    POST /orders/7 -> 200 {"id": "7"}
    GET /orders/7 -> 200 {"id": "7", "state": "pending", "waiting_for": "approval/7"}
    POST /orders/7/approval -> 202 {"outcome": "delivered"}
    GET /orders/7?wait=5 -> 200 {"id": "7", "state": "succeeded", "result": "ann gets 2 tea"}
    POST /orders/8 -> 201 {"id": "8"}
    DELETE /orders/8 -> 202 {"cancelled": true}
    GET /orders/8?wait=5 -> 200 {"id": "8", "state": "cancelled", "result": null}
    GET /orders/9 -> 404 {"detail": "there is no order 9"}

With --serve it listens on a port (`pip install fastapi uvicorn`):

    python examples/web_service.py --serve --store orders-state --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Query, Response

from taquba import Queue
from taquba.errors import InputMismatch, RunNotFound
from taquba.workflow import Continue, Outcome, RunStatus, Step, Succeed, WorkflowRuntime


async def runner(step: Step) -> Outcome:
    """An order needs an approval, and is then fulfilled."""
    if step.number == 0:
        return Continue(step.payload, signal=f"approval/{step.run_id}")
    order = json.loads(step.payload)
    return Succeed(f"{order['customer']} gets {order['amount']} tea".encode())


def make_app(store: str) -> FastAPI:
    """The service; it opens the store when it starts, and closes it when it ends."""
    runtimes: list[WorkflowRuntime] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Queue.open(store) as queue, WorkflowRuntime(queue, runner) as runtime:
            runtimes.append(runtime)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{order}", status_code=201)
    async def submit(
        order: str, response: Response, body: Annotated[dict[str, Any], Body()]
    ) -> dict[str, str]:
        [runtime] = runtimes
        try:
            run = await runtime.submit(json.dumps(body).encode(), run_id=order)
        except InputMismatch as error:
            raise HTTPException(409, "there is another order with this id") from error
        if not run.created:
            response.status_code = 200
        return {"id": order}

    @app.get("/orders/{order}")
    async def look(order: str, wait: Annotated[float, Query(ge=0, le=60)] = 0) -> dict[str, Any]:
        [runtime] = runtimes
        if wait:
            with suppress(TimeoutError, RunNotFound):  # it is told what there is
                await runtime.wait(order, timeout=wait)
        status = await runtime.status(order)
        if status is None:
            raise HTTPException(404, f"there is no order {order}")
        return await told(runtime, status)

    @app.post("/orders/{order}/approval", status_code=202)
    async def approve(order: str) -> dict[str, Any]:
        [runtime] = runtimes
        sent = await runtime.signal(f"approval/{order}", b"", signal_id="approved")
        return {"outcome": sent.outcome.value}

    @app.delete("/orders/{order}", status_code=202)
    async def cancel(order: str) -> dict[str, Any]:
        [runtime] = runtimes
        return {"cancelled": await runtime.cancel(order)}

    return app


async def told(runtime: WorkflowRuntime, status: RunStatus) -> dict[str, Any]:
    """What a client sees of an order."""
    known: dict[str, Any] = {"id": status.run_id}
    if status.termination is None:
        return {**known, "state": status.state.value, "waiting_for": status.waiting_for}
    outcome = await runtime.outcome(status.run_id)
    result = None if outcome is None or outcome.result is None else outcome.result.decode()
    return {**known, "state": status.termination.status.value, "result": result}


async def demo(store: str) -> None:
    """Ask the service what a client would ask it, without a network between."""
    import httpx

    app = make_app(store)
    order = {"customer": "ann", "amount": 2}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://orders") as client,
    ):

        async def ask(method: str, path: str, body: object = None) -> None:
            answer = await client.request(method, path, json=body)
            print(f"{method} {path} -> {answer.status_code} {json.dumps(answer.json())}")

        await ask("POST", "/orders/7", order)
        while (await client.get("/orders/7")).json()["waiting_for"] is None:
            await asyncio.sleep(0.01)
        await ask("POST", "/orders/7", order)
        await ask("GET", "/orders/7")
        await ask("POST", "/orders/7/approval")
        await ask("GET", "/orders/7?wait=5")
        await ask("POST", "/orders/8", order)
        await ask("DELETE", "/orders/8")
        await ask("GET", "/orders/8?wait=5")
        await ask("GET", "/orders/9")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="memory://", help="a folder, or s3://bucket/path")
    parser.add_argument("--port", type=int, default=8000)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--demo", action="store_true")
    what.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.demo:
        asyncio.run(demo(options.store))
    else:
        import uvicorn

        uvicorn.run(make_app(options.store), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
