"""Instruction handlers, one module per family; ``table.py`` lists the families."""

from __future__ import annotations
