"""DSpark as a kind of drafter: its methods, its dummy and its self-test; else it is as DFlash."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from eagle_aot.artifact import DFLASH_BLOCK, DFLASH_CONTEXT, DSPARK_BIAS, DSPARK_BLOCK
from eagle_aot.export.drafters.dflash import kind as dflash
from eagle_aot.export.drafters.dflash import methods as dflash_methods
from eagle_aot.export.drafters.dspark.checkpoint import read_files, recognise
from eagle_aot.export.drafters.dspark.model import VANILLA, DSparkConfig, DSparkDraft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    BATCH,
    FEATURES,
    ROWS,
    Form,
    MethodSpec,
    features_input,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.pre_norm.config import SLIDING
from eagle_aot.targets.step import Step

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

LAYERS = (SLIDING,) * 5
BLOCK, RANK, VOCAB = 8, 256, 32000
"""Of the published head for Gemma-4-31B: rows of a block, rank of the Markov head, vocabulary."""
STATES, BIAS, CONFIDENCE = "states", "bias", "confidence"


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether config or tensors name DSpark or a form of it, which `load` may refuse."""
    return recognise(checkpoint) is not None


def dummy_config(target: TapTarget) -> DSparkConfig:
    """Return the config of a random head for a target."""
    common = dflash.dummy_config(target)
    layers = replace(common.layers, layer_types=LAYERS)
    vocab = min(VOCAB, common.vocab_size)
    return DSparkConfig.extend(
        replace(common, layers=layers, block_size=BLOCK, draft_vocab_size=vocab),
        markov_rank=RANK,
        markov_head_type=VANILLA,
        sample_from_anchor=False,
        confidence_rank=RANK,
    )


FORM = dflash.Form(DSparkDraft, read_files, dummy_config)

load = partial(dflash.load, form=FORM)
describe = partial(dflash.describe, form=FORM)
without_checkpoint = partial(dflash.without_checkpoint, form=FORM)


class DSparkBiasMethod(Method):
    """Corrects drafts by the tokens before them, int64 [B, T], for rows with `states` [B, T, H].

    Returns float32 [B, T, Vd], which is added to their logits, and for a head with confidence the
    logits of their probability to be accepted after accepted ones, float32 [B, T, 1].
    """

    draft: DSparkDraft

    def forward(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, ...]:
        return self.draft.bias(tokens, states)


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `dflash_context`, as for DFlash, `dspark_block` and `dspark_bias`."""
    draft, batch = pair.draft, lengths.max_batch_size
    assert isinstance(draft, DSparkDraft)
    common = dflash_methods.methods(pair, lengths, use_splitk)
    block = common[DFLASH_BLOCK]
    block = replace(block, outputs={**block.outputs, STATES: ALL_ROWS[FEATURES]})
    outputs: dict[str, Form] = {BIAS: block.outputs["logits"]}
    if draft.confidence_head is not None:
        outputs[CONFIDENCE] = "float32", (BATCH, ROWS, 1)
    states = features_input(batch, draft.hidden_size, draft.dtype)[FEATURES]
    bias = MethodSpec(
        module=DSparkBiasMethod(pair),
        inputs={"tokens": step_inputs(batch)["tokens"], STATES: states},
        outputs=outputs,
        writes=frozenset(),
        min_rows=1,
        max_rows=lengths.max_rows,
        few_rows=True,
    )
    return {DFLASH_CONTEXT: common[DFLASH_CONTEXT], DSPARK_BLOCK: block, DSPARK_BIAS: bias}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DSparkReading(dflash.DFlashReading):
    """A loaded head, whose drafts are corrected by the tokens that the target chose."""

    draft: DSparkDraft

    def _logits(self, tokens: Tensor, step: Step) -> Tensor:
        logits, states = self.draft.run_block(tokens, step)
        drafts = slice(self.draft.config.first_draft, None)
        before = tokens[:, : logits[:, drafts].shape[1]]
        bias, *_ = self.draft.bias(before, states[:, drafts])
        return (logits[:, drafts] + bias)[0]


def readings(pair: Pair) -> Iterator[DSparkReading]:
    """Yield the only reading: the head as it was loaded."""
    assert isinstance(pair.draft, DSparkDraft)
    yield DSparkReading(target_ids=pair.draft.target_ids, draft=pair.draft)
