"""What a head drafts better from at a picture's place: its rows, or what stands for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle_aot.common.self_test import CHAIN_LEN
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.reading import Reading, chosen_reading
from eagle_aot.export.drafters.eagle3.self_test.run import score_text
from eagle_aot.export.drafters.self_test.comparison import is_better, is_enough, log_gain
from eagle_aot.export.drafters.self_test.score import Score
from eagle_aot.export.drafters.self_test.text import Text
from eagle_aot.export.drafters.self_test.verdict import how_measured
from eagle_aot.export.drafters.verdict import SEED_PICTURE, SEED_TOKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """How both drafted the answers to so many prompts with pictures."""

    prompts: int
    token: Score
    picture: Score

    @property
    def better(self) -> str:
        """The rows where they are clearly better, as one reading of a head is than another."""
        clear = is_enough(self.token) and is_better(self.token, self.picture)
        return SEED_PICTURE if clear else SEED_TOKEN

    @property
    def line(self) -> str:
        """For a reader."""
        gain = log_gain(self.token, self.picture)
        return (
            f"behind pictures tau is {self.token.rounds.tau:.2f} from what stands for their rows, "
            f"{self.picture.rounds.tau:.2f} from the rows (log ratio of nats {-gain.value:+.2f} "
            f"± {gain.error:.2f})"
        )

    def to_json(self) -> dict[str, Any]:
        """As a manifest tells it."""
        gain = log_gain(self.token, self.picture)
        errors = {"mean": gain.value, "standard_error": gain.error}
        found = {"token": told(self.token), "picture": told(self.picture)}
        how = how_measured(self.token, self.prompts)
        known = errors if is_enough(self.token) else None
        return {"better": self.better, **how, **found, "log_gain": known}


def told(score: Score) -> dict[str, Any]:
    """Of one of them."""
    rounds = score.rounds
    shares = rounds.acceptance_by_position
    return {"nats": score.mean_nats, "tau": rounds.tau, "acceptance_by_position": shares}


def compare_seeds(draft: Eagle3Draft, texts: Sequence[Text]) -> Seeds:
    """On answers to prompts with pictures, at least one."""
    chosen = chosen_reading(draft)

    def score(reading: Reading) -> Score:
        return Score.total([score_text(draft, reading, text, CHAIN_LEN) for text in texts])

    picture = score(replace(chosen, shows_pictures=True))
    return Seeds(prompts=len(texts), token=score(chosen), picture=picture)
