"""A DFlash2 head: DFlash's layers with convolutions, and a selector of paths through candidates.

The math is that of z-lab's `dflash/model.py` and of speculators' `models/dflash2`, which agree. A
DFlash head is the case whose convolutions are identities. Shapes as in DFlash: B sequences, T rows
of each, in programs S = 1 and N = B * T, H the width; k taps of a convolution, G groups of its
channels, r the selector's rank, C candidates of a place, V the target's vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.artifact import DFLASH2
from eagle_aot.export.drafters.dflash.model import DFlashConfig, DFlashDraft, DFlashLayer
from eagle_aot.export.drafters.head_tensors import empty_linear
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.layer import add_branch
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.step import Step, one_row_of_rows, rows_of_sequences

BEFORE, AFTER = 0, 1
"""The sides of a branch; a convolution is applied on each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlash2Config(DFlashConfig):
    """What a DFlash2 head has in addition: convolutions over `conv_kernel_size` rows, whose
    channels share dynamic weights in groups of `conv_group_size`, and a selector of rank
    `selector_rank` among the `selector_top_k` likeliest tokens of each place."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class BlockContext(Context):
    """A context that also says which `row` of its block each row is: int64 [S, N, 1], from 0."""

    row: Tensor


class BlockConvolution(nn.Module):
    """Two causal convolutions along a block, before and after a branch, with weights per row.

    The weights of a row are `base_kernel` plus what `kernel_projection` makes of the branch's
    normalised input, shared by the channels of a group. A block's first row has no row before it.
    """

    def __init__(self, config: DFlash2Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.taps, hidden = config.conv_kernel_size, config.hidden_size
        self.groups = hidden // config.conv_group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden, dtype=dtype), False)
        self.kernel_projection = empty_linear(hidden, 2 * self.taps * self.groups, dtype)

    def kernels(self, normed: Tensor) -> Tensor:
        """Return the dynamic weights [S, N, 2, k, G] of both sides for `normed` [S, N, H]."""
        return self.kernel_projection(normed).unflatten(-1, (2, self.taps, self.groups))

    def forward(self, x: Tensor, kernels: Tensor, side: int, row: Tensor) -> Tensor:
        """Convolve `x` [S, N, H] on a side; same shape and dtype, sums in float32.

        `row` int64 [S, N, 1] is the number of each row in its block.
        """
        total = torch.zeros((), device=x.device)
        for tap in range(self.taps):
            base = cast(self.base_kernel[side, tap], torch.float32).unflatten(0, (self.groups, -1))
            weight = base + cast(kernels[:, :, side, tap], torch.float32).unsqueeze(-1)
            total = total + weight.flatten(-2) * cast(shifted(x, tap, row), torch.float32)
        return cast(total, x.dtype)


def shifted(x: Tensor, count: int, row: Tensor) -> Tensor:
    """Return the row `count` rows before each one in its block, zeros where there is none: [S, N,
    H] of `x` [S, N, H] with numbers `row` int64 [S, N, 1]."""
    if count == 0:
        return x
    earlier = (torch.arange(x.shape[1], device=x.device) - count).clamp(min=0)
    return torch.where(row >= count, x.index_select(1, earlier), 0.0)


class DFlash2Layer(DFlashLayer):
    """A layer of DFlash whose attention and MLP lie between two convolutions each."""

    branch_outputs = ()  # what is added to the stream is not what the linears return

    def __init__(
        self, config: DFlash2Config, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__(config.layers, kind, dtype, caches)
        self.attention_conv = BlockConvolution(config, dtype)
        self.mlp_conv = BlockConvolution(config, dtype)

    def forward(
        self, stream: Tensor, normed: Tensor, context: Context, next_norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """Run the layer as `ResidualLayer` says, on `stream` and `normed` [S, N, H]."""
        assert isinstance(context, BlockContext)
        row, conv = context.row, self.attention_conv
        kernels = conv.kernels(normed)
        attended = self.self_attn(conv(normed, kernels, BEFORE, row), context)
        attended = conv(attended, kernels, AFTER, row)
        stream, normed = add_branch(attended, stream, self.post_attention_layernorm)
        conv = self.mlp_conv
        kernels = conv.kernels(normed)
        branch = conv(self.mlp(conv(normed, kernels, BEFORE, row)), kernels, AFTER, row)
        return add_branch(branch, stream, next_norm)


class CandidateSelector(nn.Module):
    """Scores pairs of candidates at neighbouring places of a block: how much likelier a candidate
    is after another one. Ids are the target's."""

    def __init__(self, config: DFlash2Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.predecessor_codebook, self.successor_codebook = (
            nn.Embedding(config.vocab_size, config.selector_rank, dtype=dtype, device="meta")
            for _ in range(2)
        )
        self.hidden_projection = empty_linear(config.hidden_size, config.selector_rank, dtype)

    def forward(self, predecessors: Tensor, candidates: Tensor, projected: Tensor) -> Tensor:
        """Return what is added to the logit of each candidate c of a place after each predecessor
        p, float32 [B, T, C, C], p before c: the sum of A[p] * g * B[c] over the rank.

        `predecessors` and `candidates` int64 [B, T, C]; `projected` g [B, T, r] are what
        `hidden_projection` makes of the states of the places' rows.
        """
        before = cast(self.predecessor_codebook(one_row_of_rows(predecessors)), torch.float32)
        after = cast(self.successor_codebook(one_row_of_rows(candidates)), torch.float32)
        gate = cast(one_row_of_rows(projected), torch.float32).unsqueeze(-2)
        scores = torch.bmm((before * gate)[0], after[0].mT)
        return rows_of_sequences(scores.unsqueeze(0), predecessors)


class DFlash2Draft(DFlashDraft):
    """A head as `DFlashDraft`, with convolutions and a selector."""

    kind = DFLASH2
    config: DFlash2Config

    def __init__(self, config: DFlash2Config, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        self.candidate_selector = CandidateSelector(config, dtype)

    def layer(self, kind: str, dtype: torch.dtype, caches: CacheSpec) -> DFlash2Layer:
        return DFlash2Layer(self.config, kind, dtype, caches)

    def _contexts(self, step: Step, *, block: bool) -> dict[str, Context]:
        contexts = super()._contexts(step, block=block)
        if not block:
            return contexts
        row = one_row_of_rows(step.positions - step.positions[:, :1]).unsqueeze(-1)
        return {kind: BlockContext(c.view, c.rotary, row) for kind, c in contexts.items()}

    def run_block(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Run blocks as `run` does; also return [B, T, r], by which the selector weighs the pairs
        of each row."""
        logits, projected = self.read_out(self._states(tokens, step))
        return rows_of_sequences(logits, tokens), rows_of_sequences(projected, tokens)

    def read_out(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits float32 [S, N, V] of `states` [S, N, H], and what the selector reads of
        them [S, N, r]."""
        projected = self.candidate_selector.hidden_projection(states)
        return self._logits(states), projected
