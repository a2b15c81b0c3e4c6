"""``nibblas explain``: which backend would run a described problem, and how long it should take."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nibblas.backends.selection import explain_problem
from nibblas.cli.report import Debug, Json, command, duration, print_json
from nibblas.errors import bad_value
from nibblas.plan.arch import gpu
from nibblas.plan.cost import roofline
from nibblas.plan.problem import GroupShape, Problem

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
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str | None, typer.Option(help="Ask about this backend only.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Add the least time on this GPU: h200, b200.")
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
      nibblas explain --m 96,128 --n 128,256 --k 256,512 --out-dtype fp16 --arch b200

    Exit codes: 0 explained; 2 no backend can take the problem, or bad usage.
    """
    problem = describe(
        sizes={"m": m, "n": n, "k": k},
        groups=groups,
        precision=precision,
        activations=activations,
        out=_one_of("out-dtype", out_dtype, _OUTS),
        form=form,
        device=_one_of("device", device, _DEVICES),
        x_scale_layout=_one_of("x-scales", x_scales, _LAYOUTS),
        w_scale_layout=_one_of("w-scales", w_scales, _LAYOUTS),
        epilogue=_epilogue(epilogue),
    )
    explanation = explain_problem(problem, backend)
    least = None if arch is None else roofline(problem, gpu(arch))
    if as_json:
        limit = None if least is None else {"seconds": least.seconds, "bound": least.bound}
        print_json({**explanation.to_dict(), "roofline": limit})
        return
    print(explanation)
    if least is not None:
        print(f"roofline   {arch}: at least {duration(least.seconds * 1e6)}, {least.bound}-bound")


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
