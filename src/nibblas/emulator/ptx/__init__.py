"""PTX text to a module of functions and variables; no meaning of instructions yet."""

from __future__ import annotations

from nibblas.emulator.ptx.model import Module
from nibblas.emulator.ptx.parser import parse

__all__ = ["Module", "parse"]
