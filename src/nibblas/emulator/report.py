"""What a launch that ended well says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """Counts of one launch.

    Attributes:
        instructions: warp instructions by family; one that a guard skips for all lanes counts.
        bytes_by_path: bytes that lanes loaded and stored, "load global" and the like.
        events: other counts: "waits" (fragments that stood still), "tensor operations", ...
        async_operations: issued; peak_async_operations: in flight at once.
        shared_bytes_per_cta: static and dynamic. peak_resident_ctas: at once.
        peak_global_bytes: allocated on the device. seconds: wall time of the emulation.
    """

    kernel: str
    instructions: Mapping[str, int]
    bytes_by_path: Mapping[str, int]
    events: Mapping[str, int]
    async_operations: int
    peak_async_operations: int
    shared_bytes_per_cta: int
    peak_resident_ctas: int
    peak_global_bytes: int
    seconds: float

    @property
    def total_instructions(self) -> int:
        return sum(self.instructions.values())

    def __str__(self) -> str:
        rate = self.total_instructions / max(self.seconds, 1e-9)
        lines = [
            f"{self.kernel}: {self.total_instructions} warp instructions in {self.seconds:.2f} s "
            f"({rate / 1000:.0f} thousand a second)"
        ]
        lines += _table("instructions", self.instructions)
        lines += _table("bytes", self.bytes_by_path)
        lines += _table("events", self.events)
        lines.append(
            f"  asynchronous operations {self.async_operations}, at most "
            f"{self.peak_async_operations} in flight; shared memory "
            f"{self.shared_bytes_per_cta} B per CTA, at most {self.peak_resident_ctas} CTAs "
            f"at once; global memory {self.peak_global_bytes} B"
        )
        return "\n".join(lines)


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    return [f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counts.items())]
