"""The machine that runs decoded kernels: memory, warps, CTAs, schedulers."""

from __future__ import annotations
