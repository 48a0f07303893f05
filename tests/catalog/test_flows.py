"""Flows, which wait for a user's objects: a cancellation always arrives."""

import asyncio
from typing import Any

import pytest

from deepskills._catalog.flows import Call, Flow, adrive


def test_a_cancellation_that_comes_as_a_call_ends() -> None:
    """Whoever cancels a search while its last call is answering gets no result."""

    class Answering:
        async def aanswer(self) -> str:
            tasks[0].cancel()
            return "answer"

    def flow() -> Flow[Any]:
        return (yield Call(Answering(), "answer", (), 60))

    tasks: list[asyncio.Task[Any]] = []

    async def search() -> None:
        tasks.append(asyncio.create_task(adrive(flow())))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    asyncio.run(search())
