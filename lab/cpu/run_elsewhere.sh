#!/usr/bin/env bash
# Builds, tests and times the CPU library on a machine at hand for minutes only; from the root of the
# tree, results into $OUT. Usage: bash lab/cpu/run_elsewhere.sh [test] [peaks] [cases ...]
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-/tmp}
{
  lscpu | grep -E "Model name|Thread|Core|Socket|L1d|L2|L3|MHz"
  grep -o -m1 -E "avx512_vnni|amx_bf16|amx_tile|avx512_bf16" /proc/cpuinfo | sort -u | tr '\n' ' '
  g++ --version | head -1
} > "$out/machine.txt" 2>&1
cmake -S . -B /tmp/build -DCMAKE_BUILD_TYPE=Release > "$out/build.txt" 2>&1 &&
  cmake --build /tmp/build -j 16 >> "$out/build.txt" 2>&1 || tail -20 "$out/build.txt"
mkdir -p src/nibblas/lib && cp /tmp/build/libnibblas_cpu.so src/nibblas/lib/
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
date +%T
if [[ "${1:-}" == test ]]; then
  shift
  timeout 60 python3 -m pytest -q -n 12 -p no:cacheprovider tests/kernels > "$out/tests.txt" 2>&1
  tail -4 "$out/tests.txt"
  date +%T
fi
if [[ "${1:-}" == probe ]]; then
  shift
  g++ -O2 -march=sapphirerapids -std=c++17 -pthread -w -Isrc/nibblas/kernels/cpu lab/cpu/probe.cpp \
    -o /tmp/probe && taskset -c 2,4 /tmp/probe | tee "$out/probe.txt"
  date +%T
fi
exec taskset -c "${CPUS:-2,4}" python3 lab/cpu/bench.py "$@" --json "$out/bench.jsonl"
