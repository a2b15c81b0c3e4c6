"""One root's process of vs.py: a JSON command per line on stdin, a JSON reply on stdout.

    worker.py ROOT gpu|mock [FAIL,...]

FAIL (mock): LABEL=raise|hang|die|fatal|bits|graph|wrong|hangturn|dieturn
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import random
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import itertools

from common import RECORDS, check_root, config_of

OUT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
ROTATING_BYTES = 300_000_000
MIN_LAUNCHES = 24
RIGHT_ROWS = 160


class Fatal(RuntimeError):
    """The device's context is of no more use."""


class Root:
    """What both kinds of worker do with their root's package."""

    def __init__(self, root: Path) -> None:
        import torch

        import nibblas
        import nibblas.backends.sm90 as backend
        from nibblas.runtime import cache, kernel, source

        check_root(root)
        self.torch, self.nibblas, self.backend, self.cache = torch, nibblas, backend, cache
        self.kernel, self.source = kernel, source
        self.planned = backend.choose_config
        cache.compile_cubin = self._no_compiler
        cache.compiler_version = self._no_compiler
        records = cache.PREBUILT / RECORDS
        self.records = json.loads(records.read_text()) if records.is_file() else {}
        self.chosen: list = []

    @staticmethod
    def _no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("no prebuilt cubin for this configuration: run pre.py on this spec")

    def choose(self, expr: str) -> None:
        """From now on every plan takes that configuration."""
        self.chosen.clear()

        def choose(problem):
            kind = problem.activations
            config = config_of(expr, problem, kind, self.planned)
            self.chosen.append(config)
            return config

        self.backend.choose_config = choose
        self.nibblas.ops.forget_plans()

    def described(self) -> dict:
        """Of the configuration that the last plan took."""
        if not self.chosen:
            raise RuntimeError("the call did not ask for a configuration: a plan was kept")
        config = self.chosen[-1]
        source = self.source.KernelSource.of(config, config.target((9, 0)))
        file = self.cache.file_name(source, self.cache.prebuilt_key(source))
        record = self.records.get(file, {})
        keys = ("registers", "spills", "problems")
        known = {key: record[key] for key in keys if key in record}
        return {"config": repr(config), "cubin": file.split("-")[-1].split(".")[0], **known}

    def copies(self, sizes, n: int, k: int) -> int:
        return max(2, -(-ROTATING_BYTES // (len(sizes) * n * k * 9 // 16)))

    def bind(self, device: str):
        """A call per set of operands."""
        run = functools.partial(self.nibblas.grouped_mm, offs=self.offs, backend="sm90")
        return [
            functools.partial(run, x=x, w=w, out=out)
            for (x, w), out in zip(self.sets, self.outs, strict=True)
        ]


class Gpu(Root):
    def __init__(self, root: Path, fail: dict) -> None:
        super().__init__(root)
        torch = self.torch
        torch.cuda.init()
        self.device = torch.device("cuda", 0)
        self.sets, self.outs, self.graphs = [], [], {}
        # Lazily loaded kernels of torch are loaded before anything is timed.
        self.case("warm", "fp16", [64, 64], 256, 512, "fp16", copies=2)
        self.outs[0].fill_(1.0)
        self.digest(self.outs[0])
        self.is_right(self.outs[0])
        self.case("warm", "nvfp4", [64, 64], 256, 512, "bf16", copies=2)
        self.outs[0].fill_(1.0)
        self.is_right(self.outs[0])
        self._graph([lambda: self.outs[0].fill_(2.0)]).replay()
        self.drop()
        gc.freeze()  # what is loaded need not be looked through between cases

    def about(self) -> dict:
        from nibblas.runtime.driver import current_driver

        return {
            "device": self.torch.cuda.get_device_name(),
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
            "sms": current_driver().attribute(0, "sms"),
        }

    def case(self, name, kind, sizes, n, k, out, values="decoded", copies=0) -> dict:
        torch, array = self.torch, self.nibblas.NVFP4Array
        self.drop()
        made = torch.Generator(self.device).manual_seed(zlib.crc32(f"{name}/{kind}".encode()))
        self.sizes, self.right_bits = sizes, set()
        groups, rows = len(sizes), sum(sizes)
        copies = copies or self.copies(sizes, n, k)

        def drawn(low: int, high: int, *shape: int):
            return torch.randint(
                low, high, shape, dtype=torch.uint8, device=self.device, generator=made
            )

        def tokens():
            return array(drawn(0, 256, rows, k // 2), drawn(0x28, 0x50, rows, k // 16))

        first = None
        for i in range(copies):
            w = array(drawn(0, 256, groups, n, k // 2), drawn(0x28, 0x50, groups, n, k // 16))
            if kind == "nvfp4":
                x = tokens()
            elif first is None:
                dtype = getattr(torch, OUT[kind])
                if values == "randn":
                    x = torch.randn(rows, k, device=self.device, generator=made).to(dtype)
                else:
                    x = tokens().dequantize(dtype)
                first = x
            else:
                x = first.roll(i, 0)
            self.sets.append((x, w))
            empty = torch.empty(rows, n, dtype=getattr(torch, OUT[out]), device=self.device)
            self.outs.append(empty)
        self.offs = torch.tensor(sizes, device=self.device).cumsum(0).int()
        torch.cuda.synchronize()
        return {"copies": copies, "mb": torch.cuda.memory_allocated() >> 20}

    def variant(self, label: str, expr: str) -> dict:
        torch = self.torch
        self.choose(expr)
        calls = self.bind("cuda")
        self.outs[0].fill_(float("nan"))
        calls[0]()
        torch.cuda.synchronize()
        reply = self.described()
        bits = self.digest(self.outs[0])
        if bits not in self.right_bits and self.is_right(self.outs[0]):
            self.right_bits.add(bits)
        reply |= {"bits": bits, "right": bits in self.right_bits}
        for call in calls[1:]:
            call()
        torch.cuda.synchronize()
        calls *= -(-MIN_LAUNCHES // len(calls))
        # The last sets warm up: the first of a graph would then lie in the L2 cache.
        warm, graph = (self._graph(some) for some in (calls[-4:], calls))
        graph.replay()
        torch.cuda.synchronize()
        self.graphs[label] = warm, graph, len(calls)
        return reply | {"launches": len(calls)}

    def _graph(self, calls: list):
        """Captured; torch.cuda.graph would collect garbage and empty the cache each time."""
        cuda = self.torch.cuda
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        cuda.synchronize()
        with cuda.stream(stream):
            graph.capture_begin()
            try:
                for call in calls:
                    call()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error says more
                    graph.capture_end()
                raise
            graph.capture_end()
        cuda.synchronize()
        return graph

    def turn(self, label: str, replays: int) -> dict:
        warm, graph, launches = self.graphs[label]
        Event = self.torch.cuda.Event
        events = [Event(enable_timing=True) for _ in range(replays + 1)]
        warm.replay()
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        self.torch.cuda.synchronize()
        pairs = itertools.pairwise(events)
        return {"us": [a.elapsed_time(b) * 1e3 / launches for a, b in pairs]}

    def finish(self, label: str) -> dict:
        """What the graph leaves in every output."""
        for out in self.outs:
            out.fill_(float("nan"))
        self.graphs[label][1].replay()
        self.torch.cuda.synchronize()
        bits = [self.digest(out) for out in self.outs]
        return {"bits": bits[0], "all_bits": hashlib.sha1(" ".join(bits).encode()).hexdigest()[:16]}

    def drop(self) -> dict:
        if not self.sets:
            return {}
        self.sets, self.outs, self.graphs = [], [], {}
        self.nibblas.ops.forget_plans()
        gc.collect()
        self.torch.cuda.empty_cache()
        return {}

    def digest(self, out) -> str:
        """64 bits that depend on every bit of it and on where that is."""
        torch = self.torch
        words = out.view(torch.int32).flatten()
        total, step = torch.zeros((), dtype=torch.int64, device=out.device), 1 << 24
        for begin in range(0, words.numel(), step):
            part = words[begin : begin + step]
            where = torch.arange(
                begin + 1, begin + 1 + part.numel(), dtype=torch.int64, device=out.device
            )
            mixed = where.mul_(0x1E3779B97F4A7C15).add_(part)
            mixed.mul_(0x3F58476D1CE4E5B9)
            mixed.bitwise_xor_(mixed >> 31)
            mixed.mul_(0x14D049BB133111EB)
            mixed.bitwise_xor_(mixed >> 29)
            total += mixed.sum()
        return f"{int(total) & (1 << 64) - 1:016x}"

    def is_right(self, out) -> bool:
        """lab/sm90's check of the largest group, and of the last rows of the last group."""
        sizes = self.sizes
        largest = sizes.index(max(sizes))
        last = max(g for g, size in enumerate(sizes) if size)
        ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
        first = ends[largest] - sizes[largest]
        checks = [(largest, slice(first, first + min(sizes[largest], RIGHT_ROWS)))]
        checks.append((last, slice(ends[last] - min(sizes[last], 32), ends[last])))
        x, w = self.sets[0]
        good = not bool(out.isnan().any())
        return all([good, *(self._is_right(out, x, w, g, rows) for g, rows in checks)])

    def _is_right(self, out, x, w, group: int, rows: slice) -> bool:
        from nibblas.formats.reference import error_bound, grouped_mm_reference, within_bound

        array = self.nibblas.NVFP4Array
        one = array(w.codes[group : group + 1], w.scales[group : group + 1])
        offs = self.torch.tensor([rows.stop - rows.start], dtype=self.torch.int32)
        is_plain = isinstance(x, self.torch.Tensor)
        some = x[rows] if is_plain else array(x.codes[rows], x.scales[rows])
        exact = grouped_mm_reference(some, one, offs)
        return bool(within_bound(out[rows], exact, error_bound(exact, out.dtype)).all())

    def survives(self) -> bool:
        try:
            self.torch.cuda.synchronize()
            return True
        except Exception:  # noqa: BLE001
            return False


class Mock(Root):
    """No device: real plans and lookups of cubins, launches recorded; results made up."""

    def __init__(self, root: Path, fail: dict) -> None:
        super().__init__(root)
        from dataclasses import replace

        from nibblas import ops
        from nibblas.runtime import driver
        from nibblas.runtime.recording import RecordingDriver

        self.fail = fail
        problem_of = ops.problem_of
        ops.problem_of = lambda *a, **k: replace(problem_of(*a, **k), device="cuda")
        self.recorder = driver._current = RecordingDriver((9, 0), 132)
        self.random = random.Random(str(root))

    def about(self) -> dict:
        return {"device": "mock", "torch": self.torch.__version__}

    def case(self, name, kind, sizes, n, k, out, values="decoded") -> dict:
        torch, array = self.torch, self.nibblas.NVFP4Array
        self.sets, self.outs, self.graphs, self.us = [], [], {}, sum(sizes) * 1e-2 + 50
        groups, rows, bytes_ = len(sizes), sum(sizes), torch.uint8

        def made(*shape: int):
            return torch.empty(shape, dtype=bytes_)

        for _ in range(2):
            if kind == "nvfp4":
                x = array(made(rows, k // 2), made(rows, k // 16))
            else:
                x = torch.empty(rows, k, dtype=getattr(torch, OUT[kind]))
            self.sets.append((x, array(made(groups, n, k // 2), made(groups, n, k // 16))))
            self.outs.append(torch.empty(rows, n, dtype=getattr(torch, OUT[out])))
        self.offs = torch.tensor(sizes).cumsum(0).int()
        return {"copies": self.copies(sizes, n, k)}

    def variant(self, label: str, expr: str) -> dict:
        fail = self.fail.get(label)
        self.choose(expr)
        self.recorder.clear()
        for call in self.bind("cpu"):
            call()
        launched = [spec.kernel for spec in self.recorder.launches]
        if "nibblas_sm90_grouped_mm" not in launched:
            raise RuntimeError(f"launched {launched}")
        if fail == "raise":
            raise ValueError("asked to raise")
        if fail == "fatal":
            raise Fatal("asked for a fatal error")
        if fail == "die":
            os._exit(3)
        if fail == "hang":
            time.sleep(1000)
        self.graphs[label] = True
        reply = {"bits": "b" if fail == "bits" else "a", "right": fail != "wrong", "launches": 24}
        return self.described() | reply

    def turn(self, label: str, replays: int) -> dict:
        if self.fail.get(label) == "hangturn":
            time.sleep(1000)
        if self.fail.get(label) == "dieturn":
            os._exit(4)
        return {"us": [self.us * self.random.gauss(1, 0.01) for _ in range(replays)]}

    def finish(self, label: str) -> dict:
        bits = {"bits": "b", "graph": "c"}.get(self.fail.get(label), "a")
        return {"bits": bits, "all_bits": bits * 2}

    def drop(self) -> dict:
        self.sets, self.outs, self.graphs = [], [], {}
        return {}

    def survives(self) -> bool:
        return not self.fail or True


def main() -> None:
    reply_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**line: object) -> None:
        print(json.dumps(line), file=reply_to, flush=True)

    root, mode, *fail = sys.argv[1:]
    fails = dict(item.split("=") for item in (fail[0].split(",") if fail and fail[0] else ()))
    try:
        worker = {"gpu": Gpu, "mock": Mock}[mode](Path(root), fails)
        reply(ok=True, **worker.about())
    except BaseException as error:
        reply(ok=False, error=f"{type(error).__name__}: {error}", fatal=True)
        raise
    for text in sys.stdin:
        command = json.loads(text)
        do = command.pop("do")
        begin = time.perf_counter()
        try:
            answer = getattr(worker, do)(**command)
            reply(ok=True, s=round(time.perf_counter() - begin, 4), **answer)
        except Exception as error:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"[:1000]
            fatal = isinstance(error, Fatal) or not worker.survives()
            reply(ok=False, error=said, fatal=fatal)
            if fatal:
                os._exit(1)


if __name__ == "__main__":
    main()
