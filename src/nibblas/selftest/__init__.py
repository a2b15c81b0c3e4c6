"""``nibblas selftest``: what owners of a GPU run, and one file that is worth sending.

Results first, each test under a time limit in a process of its own group, so that a kernel that
hangs is reported and not suffered; then times beside predictions; then the file. It also runs on
the emulated device, without times.

``jobs`` says what is run, ``tasks`` how, ``worker`` is the process that does it, ``watch`` the one
that watches it, ``hang_state`` asks a hung GPU where it stands, ``run`` puts the steps in order,
``report`` is what comes of them.
"""

from __future__ import annotations

from nibblas.selftest.jobs import Job, Place
from nibblas.selftest.report import Report
from nibblas.selftest.run import Options, selftest

__all__ = ["Job", "Options", "Place", "Report", "selftest"]
