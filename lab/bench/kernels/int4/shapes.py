"""The INT4 linears of Gemma-4-31B as an export fuses them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight [n, k], and how often a forward reads one like it."""

    name: str
    n: int
    k: int
    per_forward: int

    def nbytes(self, group: int) -> int:
        """Codes and bfloat16 scales."""
        return self.n * self.k // 2 + 2 * self.n * self.k // group

    def flop(self, rows: int) -> int:
        """Of a product with `rows` rows."""
        return 2 * rows * self.n * self.k


SHAPES = (
    Shape("qkv sliding", 16384, 5376, 50),
    Shape("o sliding", 5376, 8192, 50),
    Shape("qk full", 18432, 5376, 10),
    Shape("o full", 5376, 16384, 10),
    Shape("gate+up", 43008, 5376, 60),
    Shape("down", 5376, 21504, 60),
    Shape("lm_head", 262144, 5376, 1),
)
