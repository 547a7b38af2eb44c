"""What is asked of a server, and what it said."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Each client asks for so many `texts`, one after the other, as `parameters` say."""

    prompts: Sequence[str]
    texts: int
    parameters: dict[str, Any]

    def of(self, clients: int) -> list[str]:
        """The prompts of so many clients, whose places are their seeds; where there are too few
        they come again."""
        return [self.prompts[i % len(self.prompts)] for i in range(clients * self.texts)]

    def of_each(self, clients: int) -> list[list[dict[str, Any]]]:
        """The same by client, as an asker takes them: all begin with the first `clients` ones."""
        every = [{"number": i, "prompt": prompt} for i, prompt in enumerate(self.of(clients))]
        return [every[client::clients] for client in range(clients)]


@dataclass(slots=True)
class Known:
    """Texts by their number, as whoever said them first did."""

    texts: dict[int, str] = field(default_factory=dict)

    def different(self, said: Mapping[int, str]) -> int:
        """How many are not as they were."""
        return sum(self.texts.setdefault(number, text) != text for number, text in said.items())

    @property
    def sha256(self) -> str:
        """Of all of them, as JSON of pairs in the order of their numbers."""
        return hashlib.sha256(json.dumps(sorted(self.texts.items())).encode()).hexdigest()
