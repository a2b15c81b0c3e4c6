"""How much of the planted faults is run: EVERY_FAULT=1 for all of them, under all schedules."""

from __future__ import annotations

import os

EVERY_FAULT = bool(os.environ.get("EVERY_FAULT"))
