"""What a grouped product is, without its tensors: the key by which kernels are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nibblas.errors import bad_value

Activations = Literal["fp16", "bf16", "nvfp4"]
OutType = Literal["fp16", "bf16", "fp32"]
Form = Literal["packed", "masked", "list"]
Precision = Literal["w4a16", "w4a4"]

OUT_BYTES: dict[str, int] = {"fp16": 2, "bf16": 2, "fp32": 4}


class GroupShape(NamedTuple):
    """One group's product: ``(m, k) @ (n, k).T``."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Work:
    """What a problem must at least do: multiply-adds, and bytes moved once each."""

    macs: int
    weight_bytes: int
    token_bytes: int
    out_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.token_bytes + self.out_bytes


@dataclass(frozen=True)
class Problem:
    """A grouped product as the planner sees it. Hashable; no tensors, no torch.

    Attributes:
        shapes: ``(m, n, k)`` per group. Where sizes live on a device, m is the rows of x shared
            out evenly and ``rows_known`` is False.
        activations: "fp16" or "bf16" tokens (w4a16), or "nvfp4" (w4a4).
        out: output type.
        device: "cpu" or "cuda". device_index: which of several GPUs.
        form: "packed" (rows sorted by group, offs), "masked" (max_m rows per group) or "list".
        rows_known: whether m in ``shapes`` was read on the host.
        x_scale_layout, w_scale_layout: "linear" or "blocked".
        epilogue: which of "alpha", "row_scale", "bias" apply.
        batch_invariant: the caller asked that a row's bits do not depend on its group's size.
    """

    shapes: tuple[GroupShape, ...]
    activations: Activations
    out: OutType
    device: str = "cpu"
    device_index: int = 0
    form: Form = "packed"
    rows_known: bool = True
    x_scale_layout: str = "linear"
    w_scale_layout: str = "linear"
    epilogue: tuple[str, ...] = ()
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if not self.shapes:
            raise bad_value("shapes", given="no groups", wanted="at least one group")
        for shape in self.shapes:
            if shape.m < 0 or shape.n < 0 or shape.k <= 0 or shape.k % 16:
                raise bad_value(
                    "shapes",
                    given=f"(m, n, k) = {tuple(shape)}",
                    wanted="m >= 0, n >= 0, k a positive multiple of 16",
                )

    @property
    def precision(self) -> Precision:
        return "w4a4" if self.activations == "nvfp4" else "w4a16"

    @property
    def groups(self) -> int:
        return len(self.shapes)

    @property
    def rows(self) -> int:
        """Rows of all groups together."""
        return sum(shape.m for shape in self.shapes)

    def work(self) -> Work:
        """Least work: groups with no rows cost nothing, every byte in use moves once."""
        busy = [shape for shape in self.shapes if shape.m and shape.n]
        token_bits = 4.5 if self.activations == "nvfp4" else 16
        return Work(
            macs=sum(s.m * s.n * s.k for s in busy),
            weight_bytes=sum(s.n * s.k * 9 // 16 for s in busy),
            token_bytes=sum(int(s.m * s.k * token_bits) // 8 for s in busy),
            out_bytes=sum(s.m * s.n * OUT_BYTES[self.out] for s in busy),
        )

    def __str__(self) -> str:
        n, k = [s.n for s in self.shapes], [s.k for s in self.shapes]
        known = "" if self.rows_known else ", shared out evenly: offs was not read"
        return (
            f"{self.precision} {self.activations} -> {self.out}, {self.form}, G={self.groups}, "
            f"M={self.rows} ({_listed(s.m for s in self.shapes)} a group{known}), "
            f"N={_one_or_listed(n)}, K={_one_or_listed(k)} on {self.device}"
        )


def uniform_shapes(group_rows: tuple[int, ...], n: int, k: int) -> tuple[GroupShape, ...]:
    """Shapes of groups that share N and K."""
    return tuple(GroupShape(m, n, k) for m in group_rows)


def even_rows(rows: int, groups: int) -> tuple[int, ...]:
    """Rows per group when only their total is known on the host."""
    share, rest = divmod(rows, groups)
    return tuple(share + (g < rest) for g in range(groups))


def _one_or_listed(values: list[int]) -> str:
    """The number that all groups share, or every group's in order."""
    return str(values[0]) if len(set(values)) == 1 else _listed(values)


def _listed(values: object) -> str:
    """Few numbers in full, many as a range."""
    numbers = list(values)  # type: ignore[call-overload]
    if len(numbers) == 1:
        return str(numbers[0])
    if len(numbers) <= 8:
        return ",".join(map(str, numbers))
    return f"{min(numbers)}..{max(numbers)}"
