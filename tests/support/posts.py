"""Requests to an application in this process."""

import asyncio
from typing import Any

import httpx

from support.full_service import FullService


def post(
    path: str, content: Any, service: FullService | None = None, **headers: str
) -> httpx.Response:
    """Send a body to a service, by default a new one."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport((service or FullService()).app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, content=content, headers=headers)

    return asyncio.run(send())
