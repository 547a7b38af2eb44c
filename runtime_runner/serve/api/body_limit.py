"""The longest body that a request may have."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Middleware by which whoever reads more than `most` bytes of a body refuses the request, in
    the words of all other refusals; FastAPI's own limit answers in plain text."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise HTTPException(413, f"the body is longer than {self._most} bytes")
            return message

        await self._app(scope, limited, send)
