"""What the tests of the short way share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nibblas import calls, ops


@pytest.fixture
def nothing_prepared() -> Iterator[None]:
    """No call of an earlier test is known, and none of this one stays."""
    ops.forget_plans()
    yield
    ops.forget_plans()


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever a call is checked from the beginning."""
    taken: list[str] = []
    for name in ("packed_product", "masked_product"):
        check = getattr(calls, name)

        def counted(*arguments: Any, name: str = name, check: Any = check) -> Any:
            taken.append(name)
            return check(*arguments)

        monkeypatch.setattr(calls, name, counted)
    return taken
