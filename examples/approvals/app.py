"""The web app: starts refunds, lists what people are asked, and takes their answers.

    STORE=sqlite:///refunds.db python app.py             # beside any number of worker.py
    STORE=sqlite:///refunds.db python app.py --worker    # or with a worker inside

It runs no step of a refund itself. Its documentation is at http://127.0.0.1:8000/docs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which `worker` uses

import uvicorn
from fastapi import Body, FastAPI, Query, Request
from fastapi import Path as FromPath
from fastapi.responses import JSONResponse
from graph import NAME, Desk, Outcome, RefundRequest, refunds
from pydantic import BaseModel, StringConstraints
from worker import make_desk

import graphkeep

__all__ = ('make_app',)

STATUS = {
    graphkeep.RunNotFoundError: 404,
    graphkeep.RequestNotFoundError: 404,
    graphkeep.RunExistsError: 409,
    graphkeep.RequestClosedError: 409,
    graphkeep.InvalidAnswerError: 422,
    graphkeep.StoreUnavailableError: 503,
}
"""What an error of graphkeep is over HTTP. Any other is a fault of the server: 500."""

_PLAIN = r'^[^\x00-\x1f\x7f]+$'
RunId = Annotated[str, FromPath(pattern=_PLAIN, max_length=100)]
RequestId = Annotated[str, FromPath(pattern=_PLAIN, max_length=500)]
Person = Annotated[str, Query(pattern=_PLAIN, max_length=100)]


class NewRefund(RefundRequest):
    """The body of `POST /refunds`."""

    order: Annotated[str, StringConstraints(pattern=r'^[A-Z]-\d{4}$')]


class Started(BaseModel):
    """A refund that was taken in."""

    run_id: str


class Question(BaseModel):
    """Something that a person is asked."""

    run_id: str
    request_id: str
    prompt: str | None
    payload: Any
    """The tool call: its arguments, and what the tool said of it."""
    answer_schema: dict[str, Any]
    asked_at: datetime


class Refund(BaseModel):
    """How far a refund is."""

    run_id: str
    status: str
    result: Outcome | None
    waits_for: list[str]
    """The requests that are open."""


def make_app(store: graphkeep.Store, *, name: str = NAME, desk: Desk | None = None) -> FastAPI:
    """The app.

    Args:
        store: Where the runs are; it is closed when the app ends.
        name: What the runs are recorded under.
        desk: With one, a worker runs inside of the app.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with store, AsyncExitStack() as stack:
            if desk is not None:
                worker = graphkeep.Worker(store, {name: refunds}, deps=desk)
                await stack.enter_async_context(worker)
            yield

    app = FastAPI(title='Refunds', lifespan=lifespan)

    @app.exception_handler(graphkeep.GraphkeepError)
    async def _(request: Request, error: Exception) -> JSONResponse:
        for kind, status in STATUS.items():
            if isinstance(error, kind):
                return JSONResponse({'detail': str(error)}, status)
        raise error

    @app.post('/refunds', status_code=202)
    async def start(new: NewRefund) -> Started:
        """Take a refund in, and return at once. There is one for an order."""
        run_id = f'{name}-{new.order}'
        await refunds.start(
            inputs=RefundRequest(order=new.order, reason=new.reason),
            persistence=store.persistence(run_id, graph=name, labels={'order': new.order}),
        )
        return Started(run_id=run_id)

    @app.get('/requests')
    async def questions() -> list[Question]:
        """What people are asked, longest waiting first; at most a hundred."""
        return [
            Question(
                run_id=request.run_id,
                request_id=request.request_id,
                prompt=request.prompt,
                payload=request.payload,
                answer_schema=dict(request.schema),
                asked_at=request.created_at,
            )
            for request in await store.requests(graph=name)
        ]

    # The id ends with what the model has given as the id of its tool call: it may have a slash.
    @app.post('/requests/{run_id}/{request_id:path}', status_code=204)
    async def answer(
        run_id: RunId, request_id: RequestId, answer: Annotated[Any, Body()], by: Person
    ) -> None:
        """Approve or deny: `true`, `false`, or an object that says more."""
        await store.answer(run_id, request_id, answer, by=by)

    @app.get('/refunds/{run_id}')
    async def refund(run_id: RunId) -> Refund:
        """How far a refund is, and its result."""
        run = await store.run(run_id)
        result = None
        if run.status == 'done':
            output = (await store.document(run_id)).output
            assert output is not None
            result = Outcome.model_validate_json(output)
        waits_for = await store.requests(run_id=run_id)
        return Refund(
            run_id=run_id,
            status=run.status,
            result=result,
            waits_for=[request.request_id for request in waits_for],
        )

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description='Takes refunds in, and asks people.')
    parser.add_argument('--port', type=int, default=8000)
    parser.add_argument('--worker', action='store_true', help='carry the refunds on in here, too')
    parser.add_argument('--ledger', type=Path, default=Path('ledger.db'), metavar='FILE')
    args = parser.parse_args()

    async def wait(place: str, seconds: float) -> None:
        await asyncio.sleep(seconds)

    store = graphkeep.open_store(os.environ.get('STORE') or 'sqlite:///refunds.db')
    desk = make_desk(args.ledger, wait) if args.worker else None
    uvicorn.run(make_app(store, desk=desk), port=args.port)


if __name__ == '__main__':
    main()
