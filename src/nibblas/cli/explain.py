"""``nibblas explain``: which backend would run a described problem, and how long it should take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from nibblas import env
from nibblas.backends import registry
from nibblas.backends.selection import Explanation, explain_problem
from nibblas.cli.explain_plot import plot as draw
from nibblas.cli.report import Debug, Json, command, duration, print_json
from nibblas.errors import bad_value
from nibblas.plan.arch import GpuArch, gpu, planning_for
from nibblas.plan.cost import roofline
from nibblas.plan.problem import GroupShape, Problem
from nibblas.plan.select import Plan
from nibblas.plan.sm100 import PRESETS
from nibblas.runtime.driver import use_driver
from nibblas.runtime.recording import RecordingDriver

_PRECISIONS = ("w4a4", "w4a16")
_FORMS = ("packed", "masked", "list")
_DEVICES = ("cpu", "cuda")
_LAYOUTS = ("linear", "blocked")
_ACTIVATIONS = ("bf16", "fp16")
_OUTS = ("bf16", "fp16", "fp32")
_EPILOGUE = ("alpha", "row_scale", "bias")


@command
def explain(
    *,
    m: Annotated[str, typer.Option("--m", help="Token rows of every group: 128 or 80,176,...")],
    n: Annotated[str, typer.Option("--n", help="Weight rows (output columns).")],
    k: Annotated[str, typer.Option("--k", help="Values along K, multiples of 16.")],
    groups: Annotated[
        int | None, typer.Option("--groups", "-g", min=1, help="Groups, where no list says so.")
    ] = None,
    precision: Annotated[str, typer.Option(help="w4a4 or w4a16.")] = "w4a4",
    activations: Annotated[str, typer.Option(help="Tokens of w4a16: bf16 or fp16.")] = "bf16",
    out_dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    form: Annotated[
        str | None, typer.Option(help="packed, masked or list. [default: packed or list, by sizes]")
    ] = None,
    x_scales: Annotated[str, typer.Option(help="Token scales: linear or blocked.")] = "linear",
    w_scales: Annotated[str, typer.Option(help="Weight scales: linear or blocked.")] = "linear",
    epilogue: Annotated[
        str, typer.Option(help="What applies of alpha,row_scale,bias; a comma-separated list.")
    ] = "",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [default: cpu; cuda with --arch]")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Ask about this backend only.")] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="Plan for this GPU, which need not be here: b200, sm_100, h100, ..."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --arch: draw the schedule and the roofline.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which backend runs a problem, its predicted time and what bounds it.

    No tensors are made. Sizes are one number for all groups, or one per group.

    \b
    Examples:
      nibblas explain --groups 8 --m 128 --n 4096 --k 7168
      nibblas explain --m 80,176,128,72 --n 4096 --k 7168 --precision w4a16
      nibblas explain --m 96,128 --n 128,256 --k 256,512 --out-dtype fp16 --arch sm_100
      nibblas explain --groups 8 --m 128 --n 4096 --k 7168 --arch b200 --plot schedule.png

    Exit codes: 0 explained; 2 no backend can take the problem, or bad usage.
    """
    machine = None if arch is None else gpu(arch)
    if machine is None and plot is not None:
        raise bad_value("plot", given=repr(str(plot)), wanted="a GPU to plan for: --arch")
    if machine is not None and device == "cpu":
        raise bad_value("device", given="'cpu'", wanted="'cuda': --arch names a GPU")
    problem = describe(
        sizes={"m": m, "n": n, "k": k},
        groups=groups,
        precision=precision,
        activations=activations,
        out=_one_of("out-dtype", out_dtype, _OUTS),
        form=form,
        device=_one_of("device", device or ("cuda" if arch else "cpu"), _DEVICES),
        x_scale_layout=_one_of("x-scales", x_scales, _LAYOUTS),
        w_scale_layout=_one_of("w-scales", w_scales, _LAYOUTS),
        epilogue=_epilogue(epilogue),
    )
    if machine is None:
        explanation = explain_problem(problem, backend)
        print_json(_json(explanation, None, [])) if as_json else print(explanation)
        return
    with as_if_on(machine):
        explanation = explain_problem(problem, backend)
        presets = preset_plans(problem)
    if plot is not None:
        draw(plot, problem, explanation.plan, machine)
    if as_json:
        print_json(_json(explanation, machine, presets))
        return
    print(f"arch       {machine.name}, {machine.target}, {machine.sms} multiprocessors")
    print(explanation)
    for plan in presets:
        seconds = duration(plan.estimate.seconds * 1e6)
        print(f"preset     {plan.config}: {seconds}, bound by {plan.estimate.bound}")
    least = roofline(problem, machine)
    print(f"roofline   at least {duration(least.seconds * 1e6)}, {least.bound}-bound")


@contextmanager
def as_if_on(machine: GpuArch) -> Iterator[None]:
    """Lets backends plan for a GPU that is not here, by a driver that only records."""
    driver = RecordingDriver(machine.compute_capability, machine.sms)
    with use_driver(driver), planning_for(machine):
        yield


def preset_plans(problem: Problem) -> list[Plan]:
    """What the sm100 backend would run with each of its presets; none where it refuses."""
    backend = registry.get("sm100")
    if backend.why_not(problem):
        return []
    plans = []
    for preset in PRESETS:
        with env.sm100_preset(preset):
            plans.append(backend.plan(problem))
    return plans


def _json(explanation: Explanation, machine: GpuArch | None, presets: list[Plan]) -> dict[str, Any]:
    least = None if machine is None else roofline(explanation.problem, machine)
    return {
        **explanation.to_dict(),
        "arch": None if machine is None else machine.name,
        "presets": [
            {
                "config": str(plan.config),
                "predicted_seconds": plan.estimate.seconds,
                "bound": plan.estimate.bound,
                "terms_seconds": plan.estimate.terms,
            }
            for plan in presets
        ],
        "roofline": None if least is None else {"seconds": least.seconds, "bound": least.bound},
    }


_MOST_GROUPS = 1 << 20


def describe(
    *,
    sizes: dict[str, str],
    groups: int | None = None,
    form: str | None = None,
    precision: str = "w4a4",
    activations: str = "bf16",
    **rest: Any,
) -> Problem:
    """A Problem from sizes as they are typed.

    Args:
        sizes: "m", "n" and "k": one number, or a comma-separated list with one per group.
        groups: number of groups; None: the length of the lists, 1 if there are none.
        form: None: "list" if N or K is given per group, else "packed".
        precision: "w4a4" or "w4a16".
        activations: "bf16" or "fp16", the tokens of w4a16.
        rest: the other fields of Problem.

    Raises:
        ValueError: an unknown word, a size that is no number, or lists that disagree in length.
    """
    quantized = _one_of("precision", precision, _PRECISIONS) == "w4a4"
    tokens = "nvfp4" if quantized else _one_of("activations", activations, _ACTIVATIONS)
    shapes = _shapes(sizes, groups)
    per_group = len({(shape.n, shape.k) for shape in shapes}) > 1
    form = ("list" if per_group else "packed") if form is None else _one_of("form", form, _FORMS)
    if per_group and form != "list":
        raise bad_value("form", given=repr(form), wanted="'list': N or K differ between groups")
    return Problem(shapes=shapes, activations=tokens, form=form, **rest)  # type: ignore[arg-type]


def _shapes(sizes: dict[str, str], groups: int | None) -> tuple[GroupShape, ...]:
    lists = {name: _numbers(name, text) for name, text in sizes.items()}
    lengths = [len(values) for values in lists.values() if len(values) > 1]
    count = groups or max(lengths, default=1)
    if count > _MOST_GROUPS:
        raise bad_value("groups", given=count, wanted=f"at most {_MOST_GROUPS}")
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise bad_value(
                name, given=f"{len(values)} sizes", wanted=f"one, or {count} (one per group)"
            )
    m, n, k = (values * count if len(values) == 1 else values for values in lists.values())
    return tuple(GroupShape(*shape) for shape in zip(m, n, k, strict=True))


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise bad_value(name, given=repr(text), wanted="a number or a list 80,176,...") from None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise bad_value(name, given=repr(value), wanted=f"one of {', '.join(allowed)}")
    return value


def _epilogue(text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    given = {_one_of("epilogue", name, _EPILOGUE) for name in names}
    return tuple(name for name in _EPILOGUE if name in given)
