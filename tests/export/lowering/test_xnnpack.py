"""Lowering with XNNPACK: tied tables are stored once, and a program is decomposed once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, exported_program
from torch.nn import functional as F

from eagle_aot.artifact import PROGRAM, WEIGHTS
from eagle_aot.export.lowering import xnnpack
from eagle_aot.export.prepare.cpu_weights import quantize_for_cpu
from eagle_aot.export.prepare.quantized_modules import DynamicLinear, Int8Table, int8_by_rows
from eagle_aot.targets.decoder.experts import (
    ExpertChoice,
    ExpertLinears,
    Experts,
    ExpertsConfig,
    RouterLinear,
)

ROWS, WIDTH = 2000, 64


class Tied(nn.Module):
    """Rows of a table, times the same table, or times another one."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.output = self.table.weight if tied else nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.sigmoid(self.table(tokens)), self.output)


class Light(nn.Module):
    """The same of INT8."""

    def __init__(self) -> None:
        super().__init__()
        codes = int8_by_rows(torch.randn(ROWS, WIDTH))
        self.table, self.output = Int8Table(codes), DynamicLinear(codes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.sigmoid(self.table(tokens)))


def written(module: nn.Module, directory: Path) -> int:
    """Two methods of one module, in files; their bytes."""
    tokens = torch.tensor([[3, 1, 4]])
    programs = {name: torch.export.export(module, (tokens,)) for name in ("one", "other")}
    xnnpack.write(xnnpack.lower(programs, {}, lambda stage: None), directory)
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.mark.parametrize(("make", "size"), [(lambda: Tied(True), 4), (Light, 1)])
def test_a_tied_table_is_stored_once(make: type[nn.Module], size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = make().eval()
    table = size * ROWS * WIDTH
    assert table < written(module, tmp_path) < 1.4 * table
    program = Runtime.get().load_program(tmp_path / PROGRAM, data_path=tmp_path / WEIGHTS)
    tokens = torch.tensor([[3, 1999, 0]])
    for name in ("one", "other"):
        method = program.load_method(name)
        assert method is not None
        torch.testing.assert_close(method.execute([tokens])[0], module(tokens))


def test_untied_tables_stay_in_the_program(tmp_path: Path) -> None:
    written(Tied(False).eval(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PROGRAM]


@pytest.mark.parametrize("form", ["tanh", "none"])
def test_both_forms_of_gelu_are_computed(form: str, tmp_path: Path) -> None:
    x = torch.cat((torch.linspace(-9, 9, 4001), torch.tensor([-1e30, -1e4, 0.0, 1e4, 1e30])))
    programs = {"gelu": torch.export.export(nn.GELU(form), (x,))}
    xnnpack.write(xnnpack.lower(programs, {}, lambda stage: None), tmp_path)
    method = Runtime.get().load_program(tmp_path / PROGRAM).load_method("gelu")
    assert method is not None
    wanted = F.gelu(x.double(), approximate=form).float()
    torch.testing.assert_close(method.execute([x])[0], wanted, atol=1e-6, rtol=1e-6)


def test_a_program_is_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decompose, programs = exported_program._decompose_exported_program, list[object]()

    def counted(program: ExportedProgram, **options: Any) -> ExportedProgram:
        programs.append(program)
        return decompose(program, **options)

    monkeypatch.setattr(exported_program, "_decompose_exported_program", counted)
    program = torch.export.export(nn.Sequential(nn.SiLU(), nn.Linear(4, 4)), (torch.ones(2, 4),))
    xnnpack.lower({"forward": program}, {}, lambda stage: None)
    assert len(programs) == 1
    monkeypatch.delattr(xnnpack.LinearPartitioner, "transform_for_pre_decomposition")
    xnnpack.lower({"forward": program}, {}, lambda stage: None)
    assert len(programs) == 1 + 2, "what it saves"


class Routed(nn.Module):
    """Experts and their router."""

    def __init__(self) -> None:
        super().__init__()
        config = ExpertsConfig(num_experts=6, top_k=2, intermediate_size=24)
        self.choice = ExpertChoice(config)
        self.router = RouterLinear(32, 6)
        self.experts = Experts(config, 32, "gelu_tanh", torch.float32)
        self.experts.gate_up_proj = ExpertLinears(torch.randn(6, 48, 32))
        self.experts.down_proj = ExpertLinears(torch.randn(6, 32, 24))

    def forward(self, rows: Tensor) -> Tensor:
        mixed = self.experts(rows, *self.choice(self.router(rows)))
        return (mixed * 2).unsqueeze(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_a_loop_over_rows_takes_any_number_of_them(kind: str, tmp_path: Path) -> None:
    """Where that is the only size that varies; a row has the same bits in each."""
    torch.manual_seed(0)
    module, rows = quantize_for_cpu(Routed(), kind).eval(), torch.randn(40, 32)
    shapes = ({0: Dim("rows", min=1, max=64)},)
    traced = torch.export.export(module, (rows[:8],), dynamic_shapes=shapes, strict=False)
    xnnpack.write(xnnpack.lower({"mix": traced}, {}, lambda stage: None), tmp_path)
    method = Runtime.get().load_program(tmp_path / PROGRAM).load_method("mix")
    assert method is not None
    together = method.execute([rows])[0].clone()
    torch.testing.assert_close(together, module(rows), rtol=1e-4, atol=1e-4)
    for count in (1, 2, 9):
        assert torch.equal(method.execute([rows[:count]])[0], together[:, :count])
    taken = module.choice(module.router(rows))[1]
    shared = (taken.unsqueeze(1) == taken[0].unsqueeze(1)).any(2).sum(1)
    for number in (0, 1, 2):  # experts that neighbours of the first row share with it
        among = torch.cat((torch.tensor([0]), (shared == number).nonzero().flatten()))
        assert len(among) > 1
        assert torch.equal(method.execute([rows[among]])[0], together[:, among])
