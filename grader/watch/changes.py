"""Finds the functions that differ between two versions of the student's files.

Files are parsed and never imported. Changes of comments and docstrings are ignored. A function also
counts as changed if it uses, directly or through other names, a name whose code has changed. Names
are compared without their module. So the result contains every function that has changed, but it
can also contain a function that has not changed.
"""

import ast
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MODULE = ""  # the name for the code that a file runs at import, apart from its definitions


@dataclass(frozen=True)
class Definition:
    """The code of a function, a class or a variable of a file, and the names that the code uses."""

    code: str
    uses: frozenset[str]


@dataclass(frozen=True)
class File:
    """The definitions of a file, by name, and the code that runs when the file is imported."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    at_import: str = ""


Program = dict[str, File]  # by the file's name


@dataclass(frozen=True)
class Changes:
    """The functions of problems that have changed, in two groups.

    The functions in ``direct`` have changed themselves, or a helper of theirs has changed. The
    functions in ``indirect`` use a function in ``direct``, or are in a file whose code at import
    has changed. Such an import might now fail.
    """

    direct: frozenset[str]
    indirect: frozenset[str]


def parse(text: str) -> File:
    """Return the definitions of a file.

    Raise SyntaxError, ValueError or RecursionError if Python cannot parse the file.
    """
    statements: dict[str, list[ast.stmt]] = {}
    tree = ast.parse(text)
    for statement in tree.body:
        for name in _defined(statement):
            statements.setdefault(name, []).append(statement)
    definitions = {
        name: Definition(
            "\n".join(map(_code, own)), frozenset(used for one in own for used in _used(one))
        )
        for name, own in statements.items()
    }
    return File(definitions, _code_at_import(tree))


def changes(before: Program, after: Program, of_problems: Iterable[str]) -> Changes:
    """Return which of the functions ``of_problems`` differ between two versions."""
    of_problems = frozenset(of_problems)
    old = {name: before.get(name, File()) for name in after}
    changed = {
        name for file in after for name in _changed(old[file].definitions, after[file].definitions)
    }
    users = _users(after)
    direct = _reached(changed, users, stop_at=of_problems) & of_problems
    indirect = set(_reached(direct, users))
    for name, file in after.items():
        if file.at_import != old[name].at_import:
            indirect |= {*file.definitions, *old[name].definitions}
    return Changes(direct, of_problems & indirect - direct)


def _changed(before: Mapping[str, Definition], after: Mapping[str, Definition]) -> set[str]:
    """Return the names whose code differs, or all names if the code of ``MODULE`` differs."""
    changed = {
        name
        for name in {*before, *after}
        if name not in before or name not in after or before[name].code != after[name].code
    }
    return changed | set(after) if MODULE in changed else changed


def _users(program: Program) -> dict[str, set[str]]:
    """Return, for each name, the names of the definitions that use it."""
    users: dict[str, set[str]] = {}
    for file in program.values():
        for name, definition in file.definitions.items():
            for used in definition.uses:
                users.setdefault(used, set()).add(name)
    return users


def _reached(
    names: Iterable[str], users: Mapping[str, set[str]], stop_at: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return these names, and all names that use one of them, directly or through other names.

    The search does not go on from a name in ``stop_at`` to the names that use it.
    """
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += () if name in stop_at else users.get(name, ())
    return frozenset(found)


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file defines.

    Return [MODULE] if the statement does something else, and [] if it is a docstring.
    """
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    if _is_text(statement):
        return []  # a docstring
    assigned = isinstance(statement, (ast.Assign, ast.AnnAssign))
    names = [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return names if assigned and names else [MODULE]


def _code(statement: ast.stmt) -> str:
    """Return a text that depends on the code, but not on its comments and docstrings."""
    statement = copy.deepcopy(statement)
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            # A body that has only a docstring becomes an empty list, which can be compared, too.
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(statement)


def _code_at_import(tree: ast.Module) -> str:
    """Return the code of a file without docstrings, comments and the bodies of its functions."""
    tree = copy.deepcopy(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = []
        elif isinstance(node, (ast.ClassDef, ast.Module)):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _used(statement: ast.stmt) -> set[str]:
    """Return all names and attributes that a statement reads or assigns."""
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found
