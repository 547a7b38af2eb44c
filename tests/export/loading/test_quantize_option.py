"""`--quantize`: its values, its errors, and its effect on the target."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.spec import Scheme
from eagle_aot.targets.int4 import Int4Linear
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout
from support.heads.files import HeadShape, write_speculators
from support.pairs import dummy, load, target_of


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    model = random_gemma(hidden_size=64, intermediate_size=96, head_dim=16, global_head_dim=32)
    head = write_speculators(tmp_path / "head", HeadShape(vocab=VOCAB, target_hidden=64), [0, 1, 3])
    return save_text_layout(model, tmp_path / "target"), head


@pytest.mark.parametrize("scheme", ["int4-g32-hqq", None])
def test_decoder_linears_become_int4_on_request_alone(
    pair: tuple[Path, Path], scheme: Scheme | None
) -> None:
    spec = ExportSpec(target_model="auto", target_dir=pair[0], draft_dir=pair[1], quantize=scheme)
    target = target_of(load(spec, torch.bfloat16).pair)
    linears = [m for m in target.modules() if isinstance(m, Int4Linear)]
    assert len(linears) == (26 if scheme else 0)
    assert all(m.group_size == 32 and m.scale.dtype == torch.bfloat16 for m in linears)


def test_a_dummy_is_refused() -> None:
    with pytest.raises(SettingError, match="--quantize: a dummy is INT4 already"):
        resolve_checkpoints(dummy("gemma4-31b", quantize="int4-g32"))
