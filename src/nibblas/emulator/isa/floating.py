"""Floating-point arithmetic. PTX ISA, "Floating-Point Instructions"."""

from __future__ import annotations

import numpy as np

from nibblas.emulator.isa.build import Build, compute
from nibblas.emulator.isa.registry import Family, Step

floating = Family("floating")


@floating.instruction(
    "add [rn] type:f32|f64", section="add", anchor="floating-point-instructions-add"
)
def add(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.add, kind, kind, kind)


@floating.instruction(
    "sub [rn] type:f32|f64", section="sub", anchor="floating-point-instructions-sub"
)
def sub(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.subtract, kind, kind, kind)


@floating.instruction(
    "mul [rn] type:f32|f64", section="mul", anchor="floating-point-instructions-mul"
)
def mul(build: Build) -> Step:
    kind = build.get("type")
    return compute(build, np.multiply, kind, kind, kind)
