#!/usr/bin/env bash
# Builds, tests and times the CPU library on a machine at hand for minutes only. Results go into $OUT,
# else /tmp. Usage: [CPUS=2,4] bash lab/cpu/run_elsewhere.sh [test] [probe] [arguments of bench.py]
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-/tmp}
{
  lscpu | grep -E "Model name|Thread|Core|Socket|L1d|L2|L3|MHz"
  grep -o -m1 -E "avx512_vnni|amx_bf16|amx_tile" /proc/cpuinfo | sort -u | tr '\n' ' '
  g++ --version | head -1
} > "$out/machine.txt" 2>&1
if ! { cmake -S . -B /tmp/build -DCMAKE_BUILD_TYPE=Release && cmake --build /tmp/build -j 16; } \
  > "$out/build.txt" 2>&1; then
  tail -20 "$out/build.txt"
  exit 1
fi
mkdir -p src/nibblas/lib && cp /tmp/build/libnibblas_cpu.so src/nibblas/lib/
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
if [[ "${1:-}" == test ]]; then
  shift
  python3 -m pytest -q -n 12 -p no:cacheprovider tests/kernels > "$out/tests.txt" 2>&1
  tail -4 "$out/tests.txt"
fi
if [[ "${1:-}" == probe ]]; then
  shift
  g++ -O2 -march=sapphirerapids -std=c++17 -pthread -w -Isrc/nibblas/kernels/cpu \
    lab/cpu/amx_probe.cpp -o /tmp/probe && taskset -c "${CPUS:-2,4}" /tmp/probe | tee "$out/probe.txt"
fi
taskset -c "${CPUS:-2,4}" python3 lab/cpu/bench.py "$@" --json "$out/bench.jsonl"
