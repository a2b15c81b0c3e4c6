"""Entry point of the console script and of ``python -m nibblas.cli``."""

from __future__ import annotations

import sys

BAD_ENVIRONMENT = 2
_NEEDED = ("typer", "rich")


def main() -> None:
    """Runs the command line; without typer or rich it says what to install and exits with 2."""
    try:
        from nibblas.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        print(
            f'nibblas: the command line needs {missing}: pip install "nibblas[cli]"',
            file=sys.stderr,
        )
        sys.exit(BAD_ENVIRONMENT)
    app(prog_name="nibblas")


if __name__ == "__main__":
    main()
