"""The layer order of src/nibblas, read off the import statements of every file.

A layer may import itself and the layers before it. The side rooms may import everything, and no
layer imports a side room. Imports inside functions and under TYPE_CHECKING count as well: a
dependency is one wherever it stands.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    "errors",
    "env",
    "formats",
    "plan",
    "validation",
    "runtime",
    "backends",
    "ops",
    "calls",
    "eager",
    "api",
    "adapters",
)
SIDE_ROOMS = frozenset({"bench", "competition", "check", "cli", "emulator", "selftest"})
ROOMS = frozenset(LAYERS) | SIDE_ROOMS
PACKAGE_ROOT = "__init__"
BY_NAME = {"backends/registry.py": "emulator"}
"""Side rooms that a layer loads when a user names them, never before: decision 8."""

REQUIRED_PACKAGES = frozenset({"nibblas", "numpy", "torch"})
OPTIONAL_PACKAGES = {"cli": frozenset({"rich", "typer"})}

SOURCE = Path(__file__).resolve().parents[1] / "src" / "nibblas"
FILES = sorted(SOURCE.rglob("*.py"))

each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())


def room_of(path: Path) -> str:
    """The layer or side room that a file belongs to: its first path component below nibblas."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def absolute_module(node: ast.ImportFrom, path: Path) -> str:
    """The full module name of a ``from ... import``, relative forms resolved."""
    if node.level == 0:
        return node.module or ""
    package = ("nibblas", *path.relative_to(SOURCE).parent.parts)
    base = package[: len(package) - (node.level - 1)]
    return ".".join(base + ((node.module,) if node.module else ()))


def imported_modules(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) for every import of the file; ``from nibblas import x`` is ``nibblas.x``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_module(node, path)
            if module == "nibblas":
                yield from ((node.lineno, f"nibblas.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: module name not literal"
            yield node.lineno, str(name.value)


def imported_rooms(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) for every import from nibblas; a name of the package itself is PACKAGE_ROOT."""
    for line, module in imported_modules(tree, path):
        package, _, rest = module.partition(".")
        if package == "nibblas":
            room = rest.split(".")[0]
            yield line, room if room in ROOMS else PACKAGE_ROOT


def allowed_rooms(room: str) -> frozenset[str]:
    if room in SIDE_ROOMS:
        return ROOMS | {PACKAGE_ROOT}
    if room == PACKAGE_ROOT:
        return frozenset(LAYERS)
    return frozenset(LAYERS[: LAYERS.index(room) + 1])


def layer_violations(source: str, path: Path) -> list[str]:
    room = room_of(path)
    return [
        f"{path.relative_to(SOURCE)}:{line}: {room} imports {imported}"
        for line, imported in imported_rooms(ast.parse(source), path)
        if imported not in allowed_rooms(room)
        and imported != BY_NAME.get(path.relative_to(SOURCE).as_posix())
    ]


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, ``if`` and ``try`` bodies included."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            pending += ast.iter_child_nodes(node)


def test_every_file_belongs_to_a_known_room() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms <= ROOMS | {PACKAGE_ROOT}


@each_file
def test_imports_follow_the_layer_order(path: Path) -> None:
    assert layer_violations(path.read_text(), path) == []


@each_file
def test_third_party_imports_are_declared_dependencies(path: Path) -> None:
    """What runs at import time needs torch and numpy only (cli: its extra); others stay lazy."""
    allowed = REQUIRED_PACKAGES | OPTIONAL_PACKAGES.get(room_of(path), frozenset())
    for statement in module_level(ast.parse(path.read_text())):
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        for line, module in imported_modules(statement, path):
            top = module.split(".")[0]
            assert top in allowed or top in sys.stdlib_module_names, f"{path}:{line}: {module}"


@each_file
def test_environment_is_read_only_in_env(path: Path) -> None:
    if room_of(path) == "env":
        return
    readers = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    tree = ast.parse(path.read_text())
    uses = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in readers)
        or (isinstance(node, ast.ImportFrom) and readers & {alias.name for alias in node.names})
    ]
    assert uses == []


def test_kernels_hold_no_python() -> None:
    assert list((SOURCE / "kernels").rglob("*.py")) == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("formats/e2m1.py", "from nibblas.plan.problem import Problem"),
        ("formats/e2m1.py", "from ..backends import base"),
        ("formats/e2m1.py", "from nibblas import grouped_mm"),
        ("env.py", "import nibblas.formats.e2m1"),
        ("backends/cpu.py", "def load():\n    from nibblas import competition"),
        ("runtime/driver.py", "from nibblas.emulator import Device"),
        ("backends/portable.py", "from nibblas.emulator import Device"),
        ("backends/registry.py", "from nibblas.check import values"),
        ("api.py", "import importlib\nimportlib.import_module('nibblas.cli')"),
        ("__init__.py", "from nibblas.check import values"),
    ],
)
def test_a_wrong_import_is_seen(file: str, statement: str) -> None:
    assert layer_violations(statement, SOURCE / file) != []
