"""A gated delta net: a layer that reads the rows before it from a state of fixed size."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.targets.decoder.delta_rule import (
    RuleInputs,
    catch_up,
    if_else,
    needs_no_loop,
    read_chains,
    read_chains_in_turn,
    read_paths,
    take_in_and_read,
)
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.layer import SharedInput
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.recurrent_cache import StateSizes
from eagle_aot.targets.decoder.recurrent_views import (
    RecurrentPromptView,
    RecurrentStepView,
    RecurrentView,
)
from eagle_aot.targets.pre_norm.model import linear
from eagle_aot.targets.qwen3_5.config import HybridConfig
from eagle_aot.targets.step import MAX_ROWS, TAIL
from eagle_aot.triton_kernels.delta_net import delta_net_inputs, delta_net_output, rule_inputs
from eagle_aot.triton_kernels.delta_rule import delta_rule_prompt, delta_rule_step


class ShortConvolution(nn.Module):
    """A convolution along the text, each channel by itself; the last weight is the row's own."""

    weight: nn.Parameter

    def __init__(self, sizes: StateSizes, dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.full((sizes.channels, 1, sizes.taps), 1 / sizes.taps, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Add up `inputs` [T, channels], one for each tap and the oldest first; same shape."""
        total = inputs[0] * cast(self.weight[:, 0, 0], torch.float32)
        for tap, shifted in enumerate(inputs[1:], start=1):
            total = total + shifted * cast(self.weight[:, 0, tap], torch.float32)
        return total


class GatedDeltaNet(SharedInput):
    """Called as `net(x, view)` with rows [1, T, H] and the view of its cache.

    Between the linears everything is float32. `a` and `b` give each head's decay and rate, and `z`
    the gate of what is read.
    """

    shared_linears = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

    def __init__(self, config: HybridConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__()
        sizes = self.sizes = config.states
        hidden = config.hidden_size
        self.in_proj_qkv = linear(hidden, sizes.channels, dtype)
        self.in_proj_z = linear(hidden, sizes.values, dtype)
        self.in_proj_b = linear(hidden, sizes.heads, dtype)
        self.in_proj_a = linear(hidden, sizes.heads, dtype)
        self.conv1d = ShortConvolution(sizes, dtype)
        self.A_log = nn.Parameter(torch.zeros(sizes.heads, dtype=dtype), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.zeros(sizes.heads, dtype=dtype), requires_grad=False)
        self.norm = RMSNorm(sizes.value_dim, config.rms_norm_eps, dtype)
        self.out_proj = linear(sizes.values, hidden, dtype)
        self.kv_cache = caches.recurrent(sizes)

    def forward(self, x: Tensor, view: RecurrentView) -> Tensor:
        """Take in the rows `x` [1, T, H], and return what they read; same shape."""
        if isinstance(view, RecurrentStepView) and view.uses_operator:
            return self.out_proj(self._step_by_operators(x, view))
        qkv, z, b, a = (cast(part[0], torch.float32) for part in self.project(x))
        mixed = F.silu(self.conv1d(view.convolution_inputs(self.kv_cache, qkv)))
        sizes = self.sizes.keys, self.sizes.key_dim
        queries, terms = rule_inputs(mixed, a, b, self.dt_bias, self.A_log, sizes)
        read = self._read(queries, terms, view)
        gated = self.norm(read) * F.silu(z.unflatten(-1, (-1, self.sizes.value_dim)))
        return self.out_proj(cast(gated.flatten(1), x.dtype).unsqueeze(0))

    def _step_by_operators(self, x: Tensor, view: RecurrentStepView) -> Tensor:
        """Return what the rows `x` [1, T, H] of a step read, times their gates: [1, T, values].
        Operators change the cache in place."""
        cache, parts, (tap_slots, exist) = self.kv_cache, self.product_parts(x), view.taps
        sources, targets = view.moves or (None, None)
        queries, terms = delta_net_inputs(
            *(parts, self.conv1d.weight, self.dt_bias, self.A_log, cache.inputs, cache.terms),
            *(view.row_slots, tap_slots, exist, sources, targets, self.sizes.key_dim),
        )
        read = delta_rule_step(
            *(cache.state, view.step.sequences, view.first),
            *(cache.terms, view.older_slots, view.takes(cache), view.is_chain),
            *(terms, queries, *view.paths[1:]),
        )
        view.keep_position(cache)
        return delta_net_output(read, parts, self.norm.weight, self.norm.eps)

    def _read(self, queries: Tensor, terms: Tensor, view: RecurrentView) -> Tensor:
        """Store `terms` [B * T, W] of the rows and return what their `queries` [B * T, keys] read,
        [B * T, heads, value_dim]."""
        cache = self.kv_cache
        if isinstance(view, RecurrentPromptView) and view.uses_operator:
            view.store_terms(cache, terms)
            place = view.chunk.sequence
            read = delta_rule_prompt(cache.state, place, view.first, terms, queries)
            view.keep_position(cache)
            return read
        state = view.state(cache)
        if isinstance(view, RecurrentStepView):
            older = self._inputs(view.older_terms(cache, terms))
            state = catch_up(state, older, view.takes(cache))
            chains = self._of_one_chain if needs_no_loop(view.batch) else self._of_chains
            operands = state, queries, terms, cache.terms, *view.paths
            (reads,) = if_else(view.is_chain, chains, self._of_paths, operands)
        else:
            view.store_terms(cache, terms)
            rows = self._inputs(terms.unsqueeze(0))
            state, reads = take_in_and_read(state, rows, self._shared(queries.unsqueeze(0)))
            reads = reads.flatten(0, 1)
        view.keep(cache, state)
        return reads.squeeze(-2)

    def _of_one_chain(
        self, states: Tensor, queries: Tensor, terms: Tensor, *_: Tensor
    ) -> tuple[Tensor]:
        """Return what `_of_chains` does, in a program for one text."""
        batch = states.shape[0]
        rows = self._inputs(terms.unflatten(0, (batch, -1)))
        return (read_chains(states, rows, self._shared(queries.unflatten(0, (batch, -1)))),)

    def _of_chains(
        self, states: Tensor, queries: Tensor, terms: Tensor, *_: Tensor
    ) -> tuple[Tensor]:
        """Return what the `queries` [B * T, keys] of chains read of `states` and `terms`
        [B * T, W] of the rows: [B * T, heads, 1, value_dim]."""
        batch = states.shape[0]
        rows = self._inputs(terms.unflatten(0, (batch, -1)))
        read_by = self._shared(queries.unflatten(0, (batch, -1)))
        return (read_chains_in_turn(states, rows, read_by, queries.shape[0], MAX_ROWS),)

    def _of_paths(
        self,
        states: Tensor,
        queries: Tensor,
        _: Tensor,
        stored: Tensor,
        texts: Tensor,
        slots: Tensor,
        takes: Tensor,
    ) -> tuple[Tensor]:
        """Return what `_of_chains` does, of rows whose paths are in `slots` int64 [B * T * TAIL] of
        what is `stored`; `texts` and `takes` are those of `read_paths`."""
        tokens = self._inputs(stored.index_select(0, slots).unflatten(0, (-1, TAIL)))
        reads = read_paths(states, texts, tokens, takes, self._shared(queries.unsqueeze(0))[0])
        return (reads,)

    def _inputs(self, terms: Tensor) -> RuleInputs:
        """Return `terms` [B, N, W] as states take them in."""
        sizes = self.sizes
        ends = (sizes.keys, sizes.keys + sizes.values, sizes.keys + sizes.values + sizes.heads)
        rows = self._shared(terms[..., : ends[0]])
        values = terms[..., ends[0] : ends[1]]
        # Not unsqueezed: XNNPACK would do that, and takes one dimension that varies.
        return RuleInputs(
            rows=rows,
            columns=rows.transpose(-1, -2).contiguous(),
            values=values.unflatten(-1, (-1, 1, sizes.value_dim)),
            decays=terms[..., ends[1] : ends[2]].unflatten(-1, (-1, 1, 1)),
            rates=terms[..., ends[2] :].unflatten(-1, (-1, 1, 1)),
        )

    def _shared(self, x: Tensor) -> Tensor:
        """Repeat keys or queries [B, N, keys] for the heads that share them:
        [B, N, heads, 1, key_dim]."""
        sizes = self.sizes
        heads = x.unflatten(-1, (sizes.key_heads, 1, 1, sizes.key_dim))
        group = sizes.heads // sizes.key_heads
        return heads.expand(-1, -1, -1, group, -1, -1).flatten(2, 3)
