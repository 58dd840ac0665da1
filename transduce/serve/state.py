"""The state that all endpoints of a server share: runs, limits, token, memory for uploads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Annotated, Any

import anyio
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry

from transduce.serve.config import ServeConfig
from transduce.serve.engine import Late
from transduce.serve.models import VERBS, Served, TaskT

MAX_DECODERS = 2
"""Uploads that are decoded at a time, beside the threads of the models."""

MAX_UPLOADS = 4
"""The largest uploads that are read at a time; there may be more of smaller ones."""


class BearerToken(HTTPBearer):
    """Checks a server's token, if it has one."""

    def __init__(self, token: str = "") -> None:
        super().__init__(auto_error=False)
        self.token = token

    async def check(self, request: Request, api_key: str = "") -> None:
        """Raise HTTPException unless the header, or LibreTranslate's api_key, has the token."""
        credentials = await self(request)
        shown = (credentials.credentials if credentials else "", api_key)
        if self.token and not any(compare_digest(each.encode(), self.token.encode()) for each in shown):
            message = "this server needs its token: send 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


class ServerState:
    """The state that all endpoints share."""

    def __init__(self, runs: Sequence[Served[Any]], config: ServeConfig, token: str, hosts: Sequence[str]) -> None:
        self.runs = runs
        self.hosts = hosts
        self.config = config
        self.token = BearerToken(token)
        self.metrics = CollectorRegistry()
        self.decoders = asyncio.Semaphore(MAX_DECODERS)
        self._free_bytes = MAX_UPLOADS * config.upload_bytes

    @asynccontextmanager
    async def upload_memory(self, request: Request) -> AsyncIterator[None]:
        """Wait for memory for the body of a request, which is read afterwards, and hold it.

        Raises:
            Late: there is none before the deadline.
        """
        n_bytes = self.config.upload_bytes
        length = request.headers.get("content-length", "")
        if length.isdecimal() and "transfer-encoding" not in request.headers:
            n_bytes = min(n_bytes, int(length))
        with anyio.move_on_after(self.config.deadline):
            while self._free_bytes < n_bytes:
                await asyncio.sleep(0.02)
        if self._free_bytes < n_bytes:
            raise Late
        self._free_bytes -= n_bytes
        try:
            yield
        finally:
            self._free_bytes += n_bytes

    def find(self, name: str, kind: type[TaskT] | None = None) -> Served[TaskT]:
        """The run of this name and kind of task. Names are only compared: no path is made of one.

        Raises:
            HTTPException: there is none.
        """
        runs = [run for run in self.runs if kind is None or isinstance(run.task, kind)]
        for run in runs:
            if run.name == name:
                return run
        names = ", ".join(run.name for run in runs) or "no run"
        purpose = f"to {VERBS[kind]}, " if kind else ""
        raise HTTPException(404, f"{purpose}this server has {names}, but not {name[:40]!r}; see /v1/models")


def server_state(request: Request) -> ServerState:
    """The state of the application that received the request."""
    state: ServerState = request.app.state.server
    return state


State = Annotated[ServerState, Depends(server_state)]


async def _check_token(request: Request, state: State) -> None:
    await state.token.check(request)


TOKEN = [Depends(_check_token)]
"""Dependencies of routes that need the token, before a body is read."""
