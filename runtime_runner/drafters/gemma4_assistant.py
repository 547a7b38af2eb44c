"""Gemma's assistant behind `mtp_decode`, which reads the target's caches and has none."""

import torch
from torch import Tensor

from eagle_aot.artifact import GEMMA4_ASSISTANT, MTP_DECODE
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.round import BatchState, path_slots
from eagle_aot.runtime_runner.decode.step import StepRows, chain_tail, masked
from eagle_aot.runtime_runner.drafters.recurrent import RecurrentDrafter


class AssistantDrafter(RecurrentDrafter):
    """All rows of a round stand behind the newest key, that of the last accepted token: what has
    been drafted is in no cache, and keys of rejected drafts are in nobody's tail.

    Nothing is committed, so of a path the last row is all that is run, and of a prompt its last.
    """

    kind = GEMMA4_ASSISTANT
    method = MTP_DECODE

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Let the target's state behind a path say what may follow the token that was chosen."""
        last = accepted.rows.gather(1, accepted.count.unsqueeze(1)).unsqueeze(2)
        state = features.gather(1, last.expand(-1, -1, features.shape[2]))
        newest = masked(accepted.first >= 0, accepted.first + accepted.count)
        slots = path_slots(accepted, self.tail)
        rows = rows_at(newest, slots, accepted.last_token, accepted.sequences)
        logits, recurrent = self._run(rows, state)
        self._keep(accepted, logits, recurrent, torch.zeros_like(accepted.count))

    def recall(self, tokens: Tensor, sequence: Tensor) -> None:
        """The rows that are kept are the target's: there is nothing else to know of them."""

    def placed(self, running: BatchState, rows: StepRows) -> StepRows:
        """Behind the newest key, which may lie where the last round's tree has left it."""
        newest = masked(running.position >= 0, running.position - 1)
        return rows_at(newest, running.moves, rows.tokens, rows.sequences)


def rows_at(newest: Tensor, slots: Tensor, tokens: Tensor, sequences: Tensor) -> StepRows:
    """Rows of `tokens` int64 [B, F], all behind the key at `newest` int64 [B], which is -1 for
    whoever only fills a place.

    `slots` int64 [B, D] are those of the last D keys where they do not lie in the slots of their
    positions, else -1.
    """
    tail = torch.where(slots < 0, chain_tail(newest, slots.shape[1]), slots).unsqueeze(1)
    rows = tokens.shape[1]
    positions = newest.unsqueeze(1).expand_as(tokens)
    return StepRows(tokens, positions, sequences, tail.expand(-1, rows, -1))
