"""Compiles here every cubin that a spec's runs need, into each root's nibblas/prebuilt.

    python pre.py SPEC.py [--jobs 2] [--prune]

There a kernel is found by its source and configuration alone, without NVRTC. What is there and was
made by this compiler is kept; equal sources of several roots are compiled once (STORE).
Exit code 1: something does not compile, spills, or has a (C75xx) note of lost performance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from common import RECORDS, Spec, check_root, config_of, load_spec, problem_of

HERE = Path(__file__).resolve().parent
STORE = Path(os.environ.get("NB_CUBIN_STORE", "/tmp/nb_cubins"))


# ---- one root ----


def compile_one(source, store: Path, about: dict) -> None:
    """In a process of its own."""
    from nibblas.runtime import compile as c
    from nibblas.runtime.cache import pack, write_atomically

    begin = time.time()
    record = dict(about)
    try:
        done = c.compile_cubin(
            source.text, name=source.name, target=source.target, headers=dict(source.headers)
        )
    except Exception as error:  # noqa: BLE001
        record |= {"error": str(error)}
        if (log := getattr(error, "log_file", None)) is not None:
            lines = Path(log).read_text().splitlines()
            record["log"] = [li for li in lines if "error" in li][:12]
    else:
        used = done.resources.get(source.entry, c.Resources())
        record |= {
            "registers": used.registers,
            "stack": max((r.stack_bytes for r in done.resources.values()), default=0),
            "spills": sum(
                r.spill_store_bytes + r.spill_load_bytes for r in done.resources.values()
            ),
            "barriers": used.barriers,
            "size": len(done.cubin),
            "notes": list(done.notes),
            "warnings": [li for li in done.log.splitlines() if "warning" in li.lower()][:8],
            "problems": c.resource_problems(done),
        }
        write_atomically(store.with_suffix(".cubin"), pack(done.cubin))
    record["seconds"] = round(time.time() - begin, 1)
    write_atomically(store.with_suffix(".json"), json.dumps(record).encode())


def root_main(root: str, read_token: int, write_token: int) -> None:
    """Jobs as JSON on stdin; a JSON line per cubin on stdout."""
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import nibblas.backends.sm90  # noqa: F401  everything that a child will need
    from nibblas.plan.sm90 import choose_config
    from nibblas.plan.sm90_prepare import Sm90PrepareConfig
    from nibblas.runtime import compile as c
    from nibblas.runtime.cache import (
        PREBUILT,
        file_name,
        prebuilt_key,
        unpack,
        user_key,
        write_atomically,
    )
    from nibblas.runtime.source import KernelSource

    check_root(Path(root))
    jobs = json.load(sys.stdin)

    def say(**line) -> None:
        print(json.dumps(line), file=reply, flush=True)

    wanted: dict = {}  # file -> (source, description, users)
    for job in jobs["jobs"]:
        kind, user = job["kind"], f"{job['case']}/{job['kind']}/{job['label']}"
        try:
            problem = problem_of(job["sizes"], job["n"], job["k"], kind, job["out"])
            configs = [config_of(job["expr"], problem, kind, choose_config)]
            if kind == "nvfp4":
                configs.append(Sm90PrepareConfig.of(kind))
            for config in configs:
                source = KernelSource.of(config, config.target((9, 0)))
                file = file_name(source, prebuilt_key(source))
                wanted.setdefault(file, (source, repr(config), []))[2].append(user)
        except Exception as error:  # noqa: BLE001
            say(root=root, users=[user], error=f"{type(error).__name__}: {error}", how="config")
    version = {"compiler": c.compiler_version(), "options": list(c.OPTIONS)}
    records_at = PREBUILT / RECORDS
    try:
        records = json.loads(records_at.read_text())
    except (OSError, ValueError):
        records = {}

    def intact(path: Path) -> bool:
        return path.is_file() and unpack(path.read_bytes()) is not None

    STORE.mkdir(parents=True, exist_ok=True)
    running: dict[int, tuple[str, Path, list]] = {}

    def take(file: str, store: Path, users: list, how: str) -> None:
        try:
            record = json.loads(store.with_suffix(".json").read_text())
        except (OSError, ValueError):
            record = {"error": "the compiling process died", "config": wanted[file][1]}
        if "error" not in record:
            write_atomically(PREBUILT / file, store.with_suffix(".cubin").read_bytes())
            records[file] = {**record, **version}
            write_atomically(records_at, json.dumps(records, indent=1).encode())
        say(root=root, file=file, users=users, how=how, **record)

    def reap(block: bool) -> None:
        while running:
            pid, _ = os.waitpid(-1, 0 if block else os.WNOHANG)
            if not pid:
                return
            os.write(write_token, b"x")
            take(*running.pop(pid), "compiled")
            block = False

    def take_token() -> None:
        os.set_blocking(read_token, False)
        while True:
            reap(False)
            try:
                os.read(read_token, 1)
                return
            except BlockingIOError:
                time.sleep(0.1)

    for file, (source, description, users) in wanted.items():
        known = records.get(file)
        if (
            known
            and intact(PREBUILT / file)
            and all(known.get(key) == value for key, value in version.items())
        ):
            say(root=root, file=file, users=users, how="there", **known)
            continue
        store = STORE / user_key(source, version["compiler"])
        if intact(store.with_suffix(".cubin")) and store.with_suffix(".json").is_file():
            take(file, store, users, "copied")
            continue
        take_token()
        store.with_suffix(".json").unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                compile_one(source, store, {"config": description, "entry": source.entry})
                code = 0
            finally:
                os._exit(code)
        running[pid] = (file, store, users)
    while running:
        reap(True)
    if jobs["prune"]:
        for path in PREBUILT.glob("*.cubin"):
            if path.name not in wanted:
                path.unlink()
                records.pop(path.name, None)
        write_atomically(records_at, json.dumps(records, indent=1).encode())


# ---- all of them ----


def jobs_of(spec: Spec, root: Path) -> list[dict]:
    jobs = []
    for run in spec.runs:
        sizes, n, k = spec.cases[run.case]
        for label in run.labels:
            folder, expr = spec.variants[label]
            if folder == root:
                jobs.append(
                    {"case": run.case, "kind": run.kind, "label": label, "expr": expr}
                    | {"sizes": sizes, "n": n, "k": k, "out": spec.out[run.kind]}
                )
    return jobs


def show(line: dict, spec: Spec) -> bool:
    """Prints it; whether all is well."""
    root = os.path.relpath(line["root"], spec.path.parent)
    users = sorted({user.split("/", 2)[2] for user in line["users"]})
    who = f"{root}: {line.get('config', '?')} [{', '.join(users)}]"
    if "error" in line:
        print(f"FAIL {who} ({', '.join(line['users'][:3])}): {line['error']}", flush=True)
        for text in line.get("log", ()):
            print(f"       {text}")
        return False
    print(
        f"{line['how']:8} {line['registers']:3} registers, {line['spills']} B spilled, stack "
        f"{line['stack']}, {line['size'] >> 10} KB, {line['seconds']} s  {who}",
        flush=True,
    )
    for text in line["warnings"]:
        print(f"       {text}")
    for text in line["notes"]:
        print(f"       {text}")
    for text in line["problems"]:
        print(f"  !!!! FAIL {text}", flush=True)
    return not line["problems"]


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "--root":
        root_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--prune", action="store_true", help="remove a root's other cubins")
    asked = parser.parse_args()
    spec = load_spec(asked.spec)
    read_token, write_token = os.pipe()
    os.write(write_token, b"x" * asked.jobs)
    at_once = threading.Semaphore(asked.jobs)
    lock = threading.Lock()
    bad: list[str] = []

    def one(root: Path) -> None:
        with at_once:
            process = subprocess.Popen(
                [
                    "nice",
                    "-n",
                    "15",
                    sys.executable,
                    __file__,
                    "--root",
                    str(root),
                    str(read_token),
                    str(write_token),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(read_token, write_token),
                env={**os.environ, "PYTHONPATH": str(root)},
                text=True,
            )
            process.stdin.write(json.dumps({"jobs": jobs_of(spec, root), "prune": asked.prune}))
            process.stdin.close()
            for text in process.stdout:
                with lock:
                    line = json.loads(text)
                    if not show(line, spec):
                        bad.append(f"{line['root']}: {line['users'][0]}")
            if process.wait():
                with lock:
                    bad.append(f"{root}: its process ended with {process.returncode}")
                    print(f"FAIL {bad[-1]}", flush=True)

    threads = [threading.Thread(target=one, args=(root,)) for root in spec.roots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if bad:
        print(f"\n######## {len(bad)} FAILED ########", *bad, sep="\n  ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
