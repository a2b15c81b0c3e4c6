from __future__ import annotations

VARIANTS = {
    "few": ("../ki/m", "Sm90Config.few(activations)"),
    "some": ("../ki/m", "Sm90Config.some(activations)"),
    "one_wave": ("../ki/m", "Sm90Config.one_wave(activations)"),
    "many": ("../ki/m", "Sm90Config(activations)"),
    "plan": ("../ki/m", ""),
}
RUNS = [
    ("S1", "fp16", ["plan", "few", "some", "one_wave", "many"]),
    ("D1", "fp16", ["few", "plan"]),
    ("P2skew", "fp16", ["many", "some"]),
    ("odd", "fp16", ["plan", "some"]),
]
CASES = {"odd": ([3, 0, 700], 1024, 2048)}
