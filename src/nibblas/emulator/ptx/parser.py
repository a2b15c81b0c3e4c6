"""Tokens to a ``Module``. PTX ISA, chapters 4, 5 and 11.

Module-level statements and declarations are here; function bodies in ``body.py``; both read
operands through ``cursor.py``.
"""

from __future__ import annotations

from nibblas.emulator.errors import PtxError
from nibblas.emulator.ptx.body import parse_body
from nibblas.emulator.ptx.cursor import Cursor
from nibblas.emulator.ptx.declarations import parse_variables
from nibblas.emulator.ptx.lexer import Token, tokenize
from nibblas.emulator.ptx.model import Function, Module, Variable

_LINKAGE = frozenset({".visible", ".extern", ".weak", ".common"})
_SPACES = frozenset({".global", ".const", ".shared"})

#: Performance-tuning and cluster directives of an entry, with the least of their integers.
#: PTX ISA, "Performance-Tuning Directives", "Cluster Dimension Directives".
_DIRECTIVES = {
    ".maxntid": 1,
    ".reqntid": 1,
    ".reqnctapercluster": 1,
    ".minnctapersm": 1,
    ".maxnctapersm": 1,
    ".maxnreg": 1,
    ".maxclusterrank": 1,
    ".explicitcluster": 0,
    ".noreturn": 0,
    ".blocksareclusters": 0,
}
_THREE = frozenset({".maxntid", ".reqntid", ".reqnctapercluster"})


def parse(text: str) -> Module:
    """A module from its text.

    Raises:
        PtxError: the text is not PTX, with the line.
    """
    tokens = tokenize(text)
    return _ModuleParser(Cursor(tokens, files=_files(tokens))).parse()


def _files(tokens: list[Token]) -> dict[int, str]:
    """Paths by number of all ``.file`` directives: NVRTC puts them after the functions."""
    return {
        int(number.text): path.text.strip('"')
        for directive, number, path in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if directive.text == ".file" and number.kind == "number" and path.kind == "string"
    }


class _ModuleParser:
    def __init__(self, cursor: Cursor) -> None:
        self.at = cursor
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.version, self.target, self.address_bits = (0, 0), "", 64

    def parse(self) -> Module:
        while self.at.kind != "end":
            self._statement()
        if not self.target:
            raise PtxError("the module has no .target", self.at.line)
        return Module(self.version, self.target, self.address_bits, self.functions, self.variables)

    def _statement(self) -> None:
        at = self.at
        if at.accept(";"):
            return
        linkage = set()
        while at.text in _LINKAGE:
            linkage.add(at.take().text)
        directive = at.take("directive").text
        if directive == ".version":
            major, _, minor = at.take().text.partition(".")
            self.version = (int(major), int(minor))
        elif directive == ".target":
            self.target = at.take("word").text
            while at.accept(","):
                at.take("word")
        elif directive == ".address_size":
            self.address_bits = at.integer()
            if self.address_bits != 64:
                raise PtxError("only .address_size 64 is supported", at.line)
        elif directive == ".file":
            at.rest_of_line()
        elif directive == ".section":
            at.skip_braces()
        elif directive in (".pragma", ".alias"):
            while not at.accept(";"):
                at.take()
        elif directive in (".entry", ".func"):
            self._function(is_entry=directive == ".entry")
        elif directive in _SPACES:
            found = parse_variables(at, directive, extern=".extern" in linkage)
            for variable in found:
                known = self.variables.get(variable.name)
                if known is None or known.extern:
                    self.variables[variable.name] = variable
        else:
            raise PtxError(f"unexpected directive {directive}", at.line)

    def _function(self, *, is_entry: bool) -> None:
        at = self.at
        returns: tuple[Variable, ...] = ()
        while at.text in (".noreturn", ".attribute"):
            if at.take().text == ".attribute":
                at.skip_parentheses()
        if at.text == "(":
            returns = self._parameters()
        name = at.take("word")
        params = self._parameters() if at.text == "(" else ()
        directives: dict[str, tuple[int, ...]] = {}
        while at.text in _DIRECTIVES or at.text == ".pragma":
            directive = at.take().text
            if directive == ".pragma":
                at.take("string")
                at.expect(";")
                continue
            values = []
            if _DIRECTIVES[directive]:
                values.append(at.integer())
                while at.accept(","):
                    values.append(at.integer())
            if directive in _THREE:
                values += [1] * (3 - len(values))
            directives[directive[1:]] = tuple(values)
        body = None
        if at.text == "{":
            body = parse_body(at, params=(*params, *returns))
        else:
            at.expect(";")
        if body is None and name.text in self.functions:
            return  # a declaration repeated
        self.functions[name.text] = Function(
            name.text,
            is_entry,
            params,
            returns,
            name.line,
            None if body is None else body.statements,
            {} if body is None else body.registers,
            () if body is None else body.variables,
            directives,
        )

    def _parameters(self) -> tuple[Variable, ...]:
        at = self.at
        at.expect("(")
        params: list[Variable] = []
        while not at.accept(")"):
            space = at.take("directive").text
            if space not in (".param", ".reg"):
                raise PtxError(f"a parameter begins with .param or .reg, not {space}", at.line)
            params += parse_variables(at, space, is_parameter=True)
            at.accept(",")
        return tuple(params)
