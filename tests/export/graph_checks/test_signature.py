"""The contract's clauses about inputs and outputs, with a method that breaks each."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import ExportError
from eagle_aot.export.drafters.ngram import NgramDraft
from eagle_aot.export.method_spec import target_outputs
from support.graph_toy import (
    WIDTH,
    Outputs,
    Programs,
    Toy,
    ToyDraft,
    ToyPrefill,
    ToyVerify,
    check,
    check_with,
    good_programs,
    spec,
    trace,
    writer,
)

Change = Callable[[Tensor, Tensor], Outputs]


def changed(change: Change) -> type[Toy]:
    """Make a verification whose logits and features are changed before they are returned."""

    class Changed(ToyVerify):
        def forward(
            self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, moves: Tensor
        ) -> Outputs:
            logits, features = self.outputs(tokens, positions)
            return change(logits, features)

    return Changed


IDS = r"logits is int64 \['1', 's\d+'\], expected float32 \['batch', 'rows', 'width'\]"


@pytest.mark.parametrize(("change", "message"), [
    (lambda logits, features: (logits.argmax(-1), features), IDS),
    (
        lambda logits, features: (logits.bfloat16(), features),
        "logits is bfloat16 .*, expected float32",
    ),
    (
        lambda logits, features: (logits[:, -1:], features),
        r"logits is float32 \['1', '1', '4'\], expected float32",
    ),
    (
        lambda logits, features: (logits, features[0]),
        r"features is float32 \['s\d+', '4'\], expected features",
    ),
    (lambda logits, features: (logits, features.long()), "features is int64 .*, expected features"),
    (
        lambda logits, features: (logits, features.transpose(1, 2)),
        r"features is float32 \['1', '4', 's\d+'\], expected features",
    ),
    (
        lambda logits, features: (logits, features, logits.argmax(-1)),
        "returns 3 tensors, expected logits and features",
    ),
])  # fmt: skip
def test_outputs_other_than_logits_and_features_are_refused(
    good: Programs, change: Change, message: str
) -> None:
    verify = trace("target_verify", writer("target_verify"), kind=changed(change))
    with pytest.raises(ExportError, match=f"^target_verify: {message}"):
        check_with(good, target_verify=verify)


def test_features_without_a_reader_are_refused(good: Programs) -> None:
    verify = spec("target_verify")
    alone = replace(verify, outputs=target_outputs(verify.outputs, NgramDraft(4).tap_layers))
    with pytest.raises(ExportError, match=r"^target_verify: returns 2 tensors, expected logits$"):
        check(good, target_verify=alone)


def test_logits_of_one_sequence_among_several_are_refused() -> None:
    one = changed(lambda logits, features: (logits[:1], features))
    verify = trace("target_verify", writer("target_verify"), kind=one, batch=3)
    with pytest.raises(ExportError, match=r"target_verify: logits is float32 \['1', .*'batch'"):
        check(good_programs(batch=3) | {"target_verify": verify}, batch=3)


def test_a_prefill_returns_its_last_rows_logits_alone(good: Programs) -> None:
    class AllRows(ToyPrefill):
        def forward(self, tokens: Tensor, input_pos: Tensor, sequence: Tensor) -> Outputs:
            return self.outputs(tokens, input_pos)

    prefill = trace("prefill", writer("prefill"), kind=AllRows)
    with pytest.raises(
        ExportError, match=r"prefill: logits is .*, expected float32 \[1, 1, 'width'"
    ):
        check_with(good, prefill=prefill)


def test_a_method_of_other_inputs_is_refused(good: Programs) -> None:
    class Renamed(ToyPrefill):
        def forward(self, tokens: Tensor, positions: Tensor, sequence: Tensor) -> Outputs:
            logits, features = self.outputs(tokens, positions)
            return logits[:, -1:], features

    prefill = trace("prefill", writer("prefill"), kind=Renamed)
    with pytest.raises(ExportError, match=r"prefill: takes \['tokens', 'positions', 'sequence'\]"):
        check_with(good, prefill=prefill)


def test_inputs_of_another_size_are_refused(
    good: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as shorter tails, which the runner must not pad."""
    monkeypatch.setattr("eagle_aot.targets.step.TAIL", 8)
    short = trace("target_verify", writer("target_verify"))
    monkeypatch.undo()
    message = r"tail is int64 \['1', 's\d+', '8'\], expected int64 \['batch', 'rows', 16\]"
    with pytest.raises(ExportError, match=f"target_verify: {message}"):
        check_with(good, target_verify=short)


def test_the_drafter_takes_the_features_that_the_target_returns(good: Programs) -> None:
    class Wider(ToyDraft):
        def forward(
            self,
            tokens: Tensor,
            positions: Tensor,
            sequences: Tensor,
            tail: Tensor,
            features: Tensor,
        ) -> Outputs:
            logits, embedded = self.outputs(tokens, positions)
            return logits, torch.cat((features, embedded), dim=-1)

    draft = trace("draft_decode", writer("draft_decode"), kind=Wider)
    features = rf"'target_verify', 'float32', {WIDTH}\).*'draft_decode', 'float32', {2 * WIDTH}\)"
    with pytest.raises(ExportError, match=f"features differ among methods: .*{features}"):
        check_with(good, draft_decode=draft)
