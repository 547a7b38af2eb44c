"""What requests to an engine come to."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.engine import Engine, Finished, Request, Tokens


class Requests:
    """Of one engine, none of which fails: `prompts`, `tokens` and `ends` by their numbers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prompts: dict[int, Sequence[int]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Finished] = {}

    def ask(self, request: Request) -> int:
        """One more; its number."""
        number = self.engine.add(request)
        self.prompts[number], self.tokens[number] = list(request.prompt), []
        return number

    def step(self) -> None:
        """Once."""
        for event in self.engine.step():
            if isinstance(event, Tokens):
                self.tokens[event.request] += event.tokens
            else:
                assert isinstance(event, Finished), event
                self.ends[event.request] = event

    def finish(self) -> None:
        """All of them."""
        while self.engine.busy:
            self.step()
