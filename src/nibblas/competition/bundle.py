"""One file out of a module and all that it uses of nibblas.

What the module imports from nibblas is put in its place, with what that uses in turn, and nothing
else: definitions as they are written, methods that nobody mentions left out. So the file says what
the library says.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_FOR_READERS = ("__str__", "__repr__")
"""Special methods that only serve readers of messages."""
_DETAILS = re.compile(
    r'(?P<summary>^ +"""(?:(?!""").)*?)\n\n(?:(?!""").)*"""', re.DOTALL | re.MULTILINE
)
"""A docstring's paragraphs after the first one."""


@dataclass(frozen=True)
class Import:
    """One imported name: ``from module import name``, or ``import module`` if name is None."""

    module: str
    name: str | None

    @property
    def is_ours(self) -> bool:
        return self.module.split(".")[0] == PACKAGE.name


@dataclass
class Definition:
    """A statement of a module that binds names, from its comments to its last line.

    ``first`` and ``last`` are 1-based line numbers.
    """

    names: tuple[str, ...]
    node: ast.stmt
    first: int
    last: int


@dataclass
class Module:
    """A module of nibblas, taken apart."""

    name: str
    lines: list[str]
    definitions: list[Definition] = field(default_factory=list)
    imports: dict[str, Import] = field(default_factory=dict)
    docstring: str = ""

    @classmethod
    def read(cls, name: str) -> Module:
        """By its full name, "nibblas.plan.sm100"."""
        path = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        text = path.read_text(encoding="utf-8")
        module = cls(name, text.splitlines())
        for statement in ast.parse(text).body:
            module._add(statement)
        return module

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self.imports.update(_imported(statement))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            if self.definitions:  # what a name means, said below it
                self.definitions[-1].last = statement.end_lineno or 0
            else:
                self.docstring = self.text(statement.lineno, statement.end_lineno or 0)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for inner in statement.body:
                self._add(inner)
        elif names := _bound(statement):
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(each.lineno for each in decorators)])
            while self.lines[first - 2].startswith("#"):
                first -= 1
            last = statement.end_lineno or first
            self.definitions.append(Definition(names, statement, first, last))

    def text(self, first: int, last: int) -> str:
        return "\n".join(self.lines[first - 1 : last])

    def definition_of(self, name: str) -> Definition | None:
        return next((each for each in self.definitions if name in each.names), None)


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    for alias in statement.names:
        if alias.asname is not None:
            raise ValueError(f"{alias.name} as {alias.asname}: cannot be put into another file")
        if isinstance(statement, ast.Import):
            yield alias.name.split(".")[0], Import(alias.name, None)
        else:
            yield alias.name, Import(statement.module or "", alias.name)


def _bound(statement: ast.stmt) -> tuple[str, ...]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return (statement.name,)
    if isinstance(statement, ast.Assign):
        return tuple(each.id for each in statement.targets if isinstance(each, ast.Name))
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return (statement.target.id,)
    return ()


class Bundle:
    """The definitions that a module needs, found from its own.

    Args:
        root: full name of the module; all of it is kept.
        constants: values for names that the module assigns; their expressions go.

    Raises:
        ValueError: two definitions have one name, or something cannot be moved.
    """

    def __init__(self, root: str, constants: Mapping[str, str]) -> None:
        self._constants = constants
        self._root = root
        self._modules: dict[str, Module] = {}
        self._kept: dict[str, Module] = {}  # by name: the module whose definition it is
        self._outside: set[Import] = set()
        self._mentioned: set[str] = set()
        before = -1
        while len(self._mentioned) > before:  # a method may be mentioned after its class was seen
            before = len(self._mentioned)
            seen: set[str] = set()
            for definition in self._module(root).definitions:
                self._keep(self._module(root), definition, seen)

    def _module(self, name: str) -> Module:
        if name not in self._modules:
            self._modules[name] = Module.read(name)
        return self._modules[name]

    def _keep(self, module: Module, definition: Definition, seen: set[str]) -> None:
        """Keeps a definition and what it uses; ``seen``: names that this round is done with."""
        for name in definition.names:
            other = self._kept.setdefault(name, module)
            if other is not module:
                raise ValueError(f"{name}: defined in {other.name} and in {module.name}")
        if seen.issuperset(definition.names):
            return
        seen.update(definition.names)
        for name in self._uses(definition):
            self._resolve(module, name, seen)

    def _resolve(self, module: Module, name: str, seen: set[str]) -> None:
        imported = module.imports.get(name)
        if imported is None:
            definition = module.definition_of(name)
            if definition is not None:
                self._keep(module, definition, seen)
        elif not imported.is_ours:
            self._outside.add(imported)
        else:
            self._resolve(self._module(imported.module), name, seen)

    def _uses(self, definition: Definition) -> list[str]:
        """Names that a definition reads; attributes are noted as mentioned."""
        if self._constants.keys() & set(definition.names):
            return []
        dropped = set(map(id, self._dropped_methods(definition)))
        pending: list[ast.AST] = [definition.node]
        names = []
        while pending:
            node = pending.pop()
            if id(node) in dropped:
                continue
            if isinstance(node, ast.Attribute):
                self._mentioned.add(node.attr)
            elif isinstance(node, ast.Name):
                names.append(node.id)
            pending += ast.iter_child_nodes(node)
        return names

    def _dropped_methods(self, definition: Definition) -> list[ast.FunctionDef]:
        node = definition.node
        if not isinstance(node, ast.ClassDef) or self._kept[node.name].name == self._root:
            return []
        return [
            each
            for each in node.body
            if isinstance(each, ast.FunctionDef)
            and each.name not in self._mentioned
            and (each.name in _FOR_READERS or not each.name.startswith("__"))
        ]

    def text(self) -> str:
        """The file: docstring, imports, then module by module, the root last."""
        parts = [self._modules[self._root].docstring, "", "from __future__ import annotations", ""]
        parts += _import_lines(self._outside)
        for module in self._in_order():
            parts += ["", "", f"# From {module.name}"]
            for definition in module.definitions:
                if self._kept.get(definition.names[0]) is module:
                    parts += self._lines_of(module, definition)
        return "\n".join(parts) + "\n"

    def _lines_of(self, module: Module, definition: Definition) -> list[str]:
        """As in the module, with the blank lines before it."""
        above = module.lines[: definition.first - 1]
        lines = list(takewhile(lambda line: not line, reversed(above)))
        for name in definition.names:
            if name in self._constants:
                end = definition.node.end_lineno or 0
                assigned = f"{name} = {self._constants[name]}"
                return [*lines, assigned, *module.lines[end : definition.last]]
        gone = set(self._dropped_lines(definition))
        numbers = range(definition.first, definition.last + 1)
        lines += [module.lines[number - 1] for number in numbers if number not in gone]
        if module.name == self._root:
            return lines
        return _DETAILS.sub(r'\g<summary>"""', "\n".join(lines)).split("\n")

    def _dropped_lines(self, definition: Definition) -> Iterator[int]:
        """Of methods, with the blank line before each."""
        for method in self._dropped_methods(definition):
            first = min([method.lineno, *(each.lineno for each in method.decorator_list)])
            yield from range(first - 1, (method.end_lineno or first) + 1)

    def _in_order(self) -> list[Module]:
        """Modules after those that they import."""
        kept = {module.name for module in self._kept.values()}
        entered: set[str] = set()
        ordered: list[Module] = []

        def visit(module: Module) -> None:
            entered.add(module.name)
            for imported in module.imports.values():
                if imported.module in kept - entered:
                    visit(self._modules[imported.module])
            ordered.append(module)

        visit(self._modules[self._root])
        return ordered


def _import_lines(imports: set[Import]) -> list[str]:
    """The standard library first, then others; a line a module, sorted."""
    plain = sorted(each.module for each in imports if each.name is None)
    names: dict[str, list[str]] = {}
    for each in sorted(imports, key=lambda each: (each.module, each.name or "")):
        if each.name is not None:
            names.setdefault(each.module, []).append(each.name)
    lines = [f"import {module}" for module in plain]
    lines += [f"from {module} import {', '.join(names[module])}" for module in names]

    def is_standard(line: str) -> bool:
        return line.split()[1].split(".")[0] in sys.stdlib_module_names

    return [*filter(is_standard, lines), "", *(line for line in lines if not is_standard(line))]
