"""Gemma 4's assistant, run by `mtp_decode`, which reads the target's KV caches and has none of its
own."""

import torch
from torch import Tensor

from eagle_aot.artifact import GEMMA4_ASSISTANT, MTP_DECODE
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState, path_slots
from eagle_aot.runtime_runner.decode.step import StepRows, chain_tail, masked
from eagle_aot.runtime_runner.drafters.recurrent import RecurrentDrafter


class AssistantDrafter(RecurrentDrafter):
    """Drafts without a cache: all rows of a round see the keys up to the last accepted token's.

    Drafts are in no cache, and no tail contains the keys of rejected ones. Nothing is committed, so
    only the last row of an accepted path, or of a prompt, is run.
    """

    kind = GEMMA4_ASSISTANT
    method = MTP_DECODE

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Predict what follows the last token of a path, from the target's state after the path,
        which is in features [B, T, H]."""
        last = accepted.rows.gather(1, accepted.count.unsqueeze(1)).unsqueeze(2)
        state = features.gather(1, last.expand(-1, -1, features.shape[2]))
        newest = masked(accepted.bonus_position >= 0, accepted.bonus_position + accepted.count)
        slots = path_slots(accepted, self.tail_length)
        rows = rows_at(newest, slots, accepted.last_token, accepted.sequences)
        logits, recurrent = self._run(rows, state)
        self._keep(accepted, logits, recurrent)

    def restore_prefix(self, tokens: Tensor, sequence: Tensor) -> None:
        """Do nothing with the reused tokens int64 [1, T]: their rows are the target's."""

    def placed(self, batch: BatchState, rows: StepRows) -> StepRows:
        """Return the rows at the position of the newest key."""
        return at_newest(batch, rows.tokens)

    def chain_places(self, batch: BatchState, count: int) -> tuple[Tensor, Tensor]:
        """Return the newest key's position int64 [B, count] and tail int64 [B, count, D]."""
        rows = at_newest(batch, batch.bonus.expand(-1, count))
        return rows.positions, rows.tail


def at_newest(batch: BatchState, tokens: Tensor) -> StepRows:
    """Return rows of `tokens` int64 [B, F] at the position of the newest key, which may still be in
    the slot where the last round's tree stored it."""
    newest = masked(batch.position >= 0, batch.position - 1)
    return rows_at(newest, batch.moves, tokens, batch.sequences)


def rows_at(newest: Tensor, slots: Tensor, tokens: Tensor, sequences: Tensor) -> StepRows:
    """Return rows of `tokens` int64 [B, F], all at the position `newest` int64 [B] of the newest
    key, -1 for a padding sequence.

    `slots` int64 [B, D] are the slots of the last D keys, -1 for those in the slots of their
    positions. `sequences` is int64 [B].
    """
    tail = torch.where(slots < 0, chain_tail(newest, slots.shape[1]), slots).unsqueeze(1)
    rows = tokens.shape[1]
    positions = newest.unsqueeze(1).expand_as(tokens)
    return StepRows(tokens, positions, sequences, tail.expand(-1, rows, -1))
