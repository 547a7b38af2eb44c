"""The EAGLE-3 draft head behind `draft_decode`, whose slots lie in caches of its own."""

from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL, EAGLE3, Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.drafters.recurrent import RecurrentDrafter
from eagle_aot.runtime_runner.program.executor import Executor


class Eagle3Drafter(RecurrentDrafter):
    """Commits every slot of an accepted path, and of prompts."""

    kind = EAGLE3
    method = DRAFT_DECODE

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        target_ids: Tensor | None,
        stores_prompts: bool = False,
    ) -> None:
        """`stores_prompts` says that the artifact has `draft_prefill`."""
        super().__init__(executor, constants, target_ids)
        self._most_rows = constants.max_rows if stores_prompts else None

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Commit the slots of an accepted path; of a chunk of a prompt, run the last alone."""
        if self._most_rows is not None and features.shape[1] > self._most_rows:
            accepted, features = self._store(accepted, features)
        self._commit(accepted, features)

    def _store(self, prompt: Accepted, features: Tensor) -> tuple[Accepted, Tensor]:
        """Store a chunk's slots. Returns its last one."""
        places = prompt.slots[0]
        self.executor.run(DRAFT_PREFILL, prompt.tokens, places, prompt.sequences, features)
        last = committed(prompt.tokens[:, -1:], places[-1:], prompt.sequences)
        return last, features[:, -1:]
