"""The errors that nibblas raises, and the one form their messages take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


def _message(argument: str, given: object, wanted: object) -> str:
    return f"{argument}: got {given}; want {wanted}"


def bad_value(argument: str, *, given: object, wanted: object) -> ValueError:
    """A ValueError that names the argument, what was given and what is wanted."""
    return ValueError(_message(argument, given, wanted))


def bad_type(argument: str, *, given: object, wanted: object) -> TypeError:
    """A TypeError in the same form; an object given is named by its type."""
    shown = given if isinstance(given, str) else type(given).__name__
    return TypeError(_message(argument, shown, wanted))


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Lets errors raised inside speak of an adapter's own arguments.

    Args:
        names: inner argument name -> the name that the adapter's caller knows.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        argument = re.match(r"[\w.]+", str(error))
        if argument is None or argument.group() not in names:
            raise
        message = names[argument.group()] + str(error)[argument.end() :]
        raise type(error)(message) from error


class UnsupportedProblemError(NotImplementedError):
    """No backend can take a well-formed problem.

    ``reasons`` maps each backend's name to its reasons, as ``Backend.why_not`` gave them.
    """

    def __init__(self, problem: object, reasons: Mapping[str, Sequence[str]]) -> None:
        self.reasons: dict[str, list[str]] = {name: list(why) for name, why in reasons.items()}
        lines = [f"no backend can take {problem}"]
        lines += [f"  {name}: {'; '.join(why)}" for name, why in self.reasons.items()]
        super().__init__("\n".join(lines))


class NativeLibraryError(RuntimeError):
    """The native library is missing, cannot be loaded, or reports a failure of its own."""
