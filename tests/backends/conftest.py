"""What the tests of GPU backends share: a recorded device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nibblas.errors import NativeLibraryError
from nibblas.runtime.compile import compiler_version
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The compiler's version."""
    try:
        return compiler_version()
    except NativeLibraryError as error:
        pytest.skip(str(error))


@pytest.fixture
def b200(nvrtc: str) -> Iterator[RecordingDriver]:
    """A B200 that records; the kernels that it loads are compiled here."""
    with use_driver(RecordingDriver(compute_capability=(10, 0), sms=148)) as recorder:
        yield recorder
