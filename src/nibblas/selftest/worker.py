"""The process that does jobs: ``python -m nibblas.selftest.worker``, started by ``watch``.

It reads one line of JSON, ``{"place": .., "jobs": [..]}``, and writes one line for each event:

    {"ready": true}
    {"begin": 0}
    {"kernel": {..}}                 loaded since the line before
    {"launch": "nibblas_.. grid ..", "image": SHA-256 of the kernel's} about to happen
    {"end": 0, "result": {..}}

Whatever else would be printed on stdout goes to stderr. Sent SIGUSR1 it writes its stack there,
also while it waits for a GPU.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from nibblas.runtime.driver import LaunchSpec
from nibblas.runtime.kernel import loaded_kernels
from nibblas.selftest.facts import kernel_facts
from nibblas.selftest.jobs import Job, Place
from nibblas.selftest.tasks import do

Send = Callable[[dict[str, Any]], None]


class _Launches(logging.Handler):
    """Sends every launch, and before it the kernels that are new."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._digests: dict[int, str] = {}  # by function

    def emit(self, record: logging.LogRecord) -> None:
        """A record whose one argument is the launch: see ``LoadedKernel``."""
        spec = record.args[0] if isinstance(record.args, tuple) else None
        assert isinstance(spec, LaunchSpec)
        for kernel in loaded_kernels():
            if kernel.function not in self._digests:
                self._digests[kernel.function] = kernel.image_digest
                self._send({"kernel": kernel_facts(kernel)})
        self._send({"launch": str(spec), "image": self._digests[spec.function]})


def main() -> None:
    """Does the jobs of one request."""
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    send = _sender()
    request = json.loads(sys.stdin.readline())
    place = Place(**request["place"])
    log = logging.getLogger("nibblas.launch")
    log.addHandler(_Launches(send))
    log.setLevel(logging.DEBUG)
    send({"ready": True})
    for i, fields in enumerate(request["jobs"]):
        send({"begin": i})
        send({"end": i, "result": do(Job(**fields), place)})


def _sender() -> Send:
    """What writes to the stdout that there was; the process's own is stderr from here on."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(event: dict[str, Any]) -> None:
        lines.write(json.dumps(event) + "\n")
        lines.flush()

    return send


if __name__ == "__main__":
    main()
