"""`--quantize`: what it takes, what it refuses, and that it reaches the target."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from click.testing import CliRunner

from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.export import cli as export_cli
from eagle_aot.export.spec import Scheme
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.quantise import SCHEMES
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout
from support.heads.files import HeadShape, write_speculators


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    model = random_gemma(hidden_size=64, intermediate_size=96, head_dim=16, global_head_dim=32)
    head = write_speculators(tmp_path / "head", HeadShape(vocab=VOCAB, target_hidden=64), [0, 1, 3])
    return save_text_layout(model, tmp_path / "target"), head


def test_the_command_takes_the_schemes_there_are() -> None:
    assert tuple(SCHEMES) == get_args(Scheme)
    wrong = CliRunner().invoke(export_cli.main, ["--target-model", "x", "--quantize", "int3"])
    assert wrong.exit_code == 2 and "int4-g32-hqq" in wrong.output


def test_decoder_linears_become_int4(pair: tuple[Path, Path]) -> None:
    checkpoints = resolve_checkpoints(
        ExportSpec(
            target_model="auto", target_dir=pair[0], draft_dir=pair[1], quantize="int4-g32-hqq"
        )
    )
    target = load_pair(checkpoints, torch.bfloat16, CacheSpec(32, torch.bfloat16)).pair.target
    linears = [m for m in target.modules() if isinstance(m, Int4Linear)]
    assert len(linears) == 26 and {m.group_size for m in linears} == {32}
    assert {m.scale.dtype for m in linears} == {torch.bfloat16}


def test_without_it_they_stay_dense(pair: tuple[Path, Path]) -> None:
    target = load_pair(
        resolve_checkpoints(ExportSpec(target_model="auto", target_dir=pair[0], draft_dir=pair[1])),
        torch.float32,
        CacheSpec(32, torch.float32),
    ).pair.target
    assert not any(isinstance(m, Int4Linear) for m in target.modules())


def test_what_it_cannot_mean_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(SettingError, match="--quantize: a dummy is INT4 already"):
        resolve_checkpoints(
            ExportSpec(target_model="gemma4-31b", load_format="dummy", quantize="int4-g32")
        )
    with pytest.raises(SettingError, match="--quantize int3: must be one of int4-g32, "):
        resolve_checkpoints(
            ExportSpec(target_model="auto", target_dir=pair[0], draft_dir=pair[1], quantize="int3")
        )
