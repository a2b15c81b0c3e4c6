"""Shows that the installed package needs no compiler on any GPU that it has kernels for.

Loads every kernel on a recorded device of every compute capability, with no user's cache. Fails if
one is not found among the prebuilt cubins, or if NVRTC is installed, which would prove nothing.
Usage: load_prebuilt.py
"""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec

from nibblas.plan.portable import TARGETS
from nibblas.runtime.cache import CubinCache
from nibblas.runtime.driver import use_driver
from nibblas.runtime.kernel import KernelConfig, load_kernel
from nibblas.runtime.prebuild import all_configs
from nibblas.runtime.recording import RecordingDriver


class FoundPrebuilt(logging.Handler):
    """Counts what the cache says that it found among the shipped cubins."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().endswith(": prebuilt")


def serves(config: KernelConfig, capability: tuple[int, int]) -> bool:
    try:
        config.target(capability)
    except ValueError:
        return False
    return True


def main() -> int:
    if find_spec("cuda") is not None:
        print("cuda.bindings is installed: a missing cubin would be compiled", file=sys.stderr)
        return 1
    log = logging.getLogger("nibblas.compile")
    log.setLevel(logging.DEBUG)
    for capability, target in TARGETS.items():
        log.handlers = [found := FoundPrebuilt()]
        configs = [config for config in all_configs() if serves(config, capability)]
        cubins = CubinCache(None)
        with use_driver(RecordingDriver(capability)) as driver:
            for config in configs:
                load_kernel(0, config, cache=cubins)
        if not 0 < len(configs) == driver.count("load") == found.count:
            print(f"{capability}: {found.count} of {len(configs)} prebuilt", file=sys.stderr)
            return 1
        print(
            f"compute capability {capability[0]}.{capability[1]}: {found.count} kernels loaded, "
            f"all prebuilt for {target}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
