"""What the self-test's tests need."""

from __future__ import annotations

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.runtime.compile import compiler_version


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """NVRTC's version; skips where it is not installed."""
    try:
        return compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))
