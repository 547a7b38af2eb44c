"""What is traced: the three methods, with their example inputs and ranges of length."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY
from eagle_aot.export.int4_dispatch import matvec_max_m_raised
from eagle_aot.export.lengths import MAX_VERIFY_WINDOW, MethodLengths
from eagle_aot.export.pair import Eagle3Speculator
from eagle_aot.export.prepare.attention import STOCK, attending_by
from eagle_aot.export.uncloned_weights import weights_uncloned

# One module per method, all over the same children: weights and caches keep one name (`target.*`,
# `draft.*`) in every method and can be shared between them.


class Prefill(Eagle3Speculator):
    def forward(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        return self.prefill(tokens, input_pos)


class TargetVerify(Eagle3Speculator):
    def forward(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        return self.target_verify(tokens, input_pos)


class DraftDecode(Eagle3Speculator):
    def forward(self, tokens: Tensor, feature: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        return self.draft_decode(tokens, feature, input_pos)


@dataclass(frozen=True, slots=True)
class TracedMethod:
    """A method's module, its inclusive range of rows, and the number it is traced and tuned at."""

    module: Eagle3Speculator
    min_rows: int
    max_rows: int
    typical_rows: int


def traced_methods(speculator: Eagle3Speculator, lengths: MethodLengths) -> dict[str, TracedMethod]:
    """The three methods of an artifact, in the order of their use."""
    pair, window = (speculator.target, speculator.draft), lengths.max_verify_window
    longest = lengths.max_prefill
    return {
        PREFILL: TracedMethod(Prefill(*pair), lengths.min_prefill, longest, longest),
        TARGET_VERIFY: TracedMethod(TargetVerify(*pair), 1, window, window),
        # Prompts are long, but it is the rounds that must be fast.
        DRAFT_DECODE: TracedMethod(DraftDecode(*pair), 1, lengths.max_draft, window),
    }


def export_methods(
    speculator: Eagle3Speculator, lengths: MethodLengths, attention: str = STOCK
) -> dict[str, ExportedProgram]:
    """Trace every method with its length as the one dynamic dimension.

    `attention` is verification's and the head's; prompts have the stock one. Raises what
    `torch.export` raises.
    """
    programs = {}
    with matvec_max_m_raised(MAX_VERIFY_WINDOW), torch.no_grad(), weights_uncloned(speculator):
        for name, method in traced_methods(speculator, lengths).items():
            inputs = example_inputs(name, speculator, method.typical_rows)
            rows = Dim("rows", min=method.min_rows, max=method.max_rows)
            shapes = tuple({0: rows} if x.ndim == 1 else {1: rows} for x in inputs)
            with attending_by(STOCK if name == PREFILL else attention, method.module):
                programs[name] = torch.export.export(
                    method.module, inputs, dynamic_shapes=shapes, strict=True
                )
    return programs


def example_inputs(name: str, speculator: Eagle3Speculator, rows: int) -> tuple[Tensor, ...]:
    """Inputs of `rows` rows in the order of the method's signature."""
    tokens = torch.zeros(1, rows, dtype=torch.int64)
    input_pos = torch.arange(rows)
    if name != DRAFT_DECODE:
        return tokens, input_pos
    hidden = speculator.draft.config.hidden_size
    feature = torch.zeros(1, rows, hidden, dtype=speculator.draft.embed_tokens.weight.dtype)
    return tokens, feature, input_pos
