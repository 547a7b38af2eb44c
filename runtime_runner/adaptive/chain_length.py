"""How many drafts a round is asked to have."""

from typing import Final, Literal

AUTO_LENGTH: Final = "auto"
ChainLen = int | Literal["auto"]
