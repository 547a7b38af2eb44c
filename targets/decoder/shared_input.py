"""Linears that read one input: apart under their checkpoint's names, or one packed INT4 weight."""

from torch import Tensor, nn

from eagle_aot.targets.int4 import Int4Linear, Int4Weight, PackedProjections


class SharedInput(nn.Module):
    """Base: a module whose linears called `sharers` (or None) read one input, by `project`.

    Once `fuse` has packed them, `fused` stands in their place and they are None.
    """

    sharers: tuple[str, ...]
    fused: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("fused", None)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """`x` [1, T, K] -> [1, T, N] of each linear, in the order of `sharers`."""
        if self.fused is not None:
            return self.fused(x)
        return tuple(linear(x) for linear in self._linears())

    def fuse(self, multiprocessors: int) -> None:
        """Pack the linears as one weight for a GPU, where all are INT4 and fit together.

        Raises UnsupportedError for weights that the kernels cannot read.
        """
        linears = self._linears()
        weights = [linear.weight for linear in linears if isinstance(linear, Int4Linear)]
        if not linears or len(weights) < len(linears) or not self._fit(weights):
            return
        self.fused = self._packed(weights, multiprocessors)
        for name in self.sharers:
            setattr(self, name, None)

    def _fit(self, weights: list[Int4Weight]) -> bool:
        """Whether `_packed` takes these weights."""
        return len({(weight.group_size, weight.digits) for weight in weights}) == 1

    def _packed(self, weights: list[Int4Weight], multiprocessors: int) -> nn.Module:
        return PackedProjections(weights, multiprocessors)

    def _linears(self) -> list[nn.Module]:
        linears = (getattr(self, name) for name in self.sharers)
        return [linear for linear in linears if linear is not None]
