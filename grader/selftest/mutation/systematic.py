"""Make wrong submissions automatically, by small changes of the solutions' code.

The tables and functions below say which changes there are, and all of them are made. The existing
libraries for mutation testing do not fit: they test what their own runner imports, or they need a
database and a web client only for such tables. This module changes the text in one place, so that a
change that no check notices can be read as a difference of one line.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

# The operator that replaces each operator.
BINARY = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
}
# The text of each operator.
SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
# The text of each comparison, and the text that replaces it.
COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
# The text that replaces each function's name. "" leaves the argument alone: list(x) becomes (x).
CALLED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "reversed": "",
    "sorted": "",
    "list": "",
}
# Methods whose call is dropped: x.clone() becomes x.
DROPPED = {
    "clone",
    "contiguous",
    "detach",
    "wait",
    "sum",
    "mean",
    "reshape",
    "view",
    "transpose",
    "flatten",
}


@dataclass(frozen=True)
class Change:
    """One change of a file: ``old`` at offset ``start`` becomes ``new``."""

    part: str
    function: str  # or ``Class.method``
    start: int
    old: str
    new: str
    line: int
    before: str  # the line of the change, shortened, as it was
    after: str  # and as it is now
    again: int = 1  # counts equal changes of equal lines at several places of the function

    @property
    def name(self) -> str:
        return f"{self.function}: {self.before} → {self.after}" + (
            f" [{self.again}]" if self.again > 1 else ""
        )

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def changes(part: str, text: str) -> list[Change]:
    """Return all changes of the functions in a file that make another program.

    If several changes make the same program, return only the first.
    """
    found: dict[str, Change] = {}
    named: Counter[str] = Counter()
    tree, places = ast.parse(text), _Places(text)
    for function, node in _functions(tree):
        for start, end, new in _edits(node, places):
            old, line = text[start:end], text.count("\n", 0, start) + 1
            if old == new:
                continue
            head, tail = text.rfind("\n", 0, start) + 1, text.find("\n", end)
            before, after = text[head:tail], text[head:start] + new + text[end:tail]
            change = Change(part, function, start, old, new, line, _short(before), _short(after))
            if (
                _compiles(changed := change.apply(text))
                and (program := ast.dump(ast.parse(changed))) not in found
            ):
                named[change.name] += 1
                found[program] = replace(change, again=named[change.name])
    return list(found.values())


def _short(lines: str) -> str:
    """Return the first of these lines without its comment, and "…" for the others."""
    first, *others = [line.partition("  #")[0].strip() for line in lines.strip().split("\n")]
    return first + (" …" if others else "")


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


class _Places:
    """Converts the lines and columns of a syntax tree into offsets in the text.

    Columns count bytes, and offsets count characters.
    """

    def __init__(self, text: str) -> None:
        self.text, self.lines, self.starts = text, text.splitlines(keepends=True), [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        return self._at(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        return self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def of(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.end(node)]

    def sign(
        self, left: ast.AST, right: ast.AST, old: str, new: str
    ) -> Iterator[tuple[int, int, str]]:
        """Yield the edit that replaces the sign ``old`` between two operands with ``new``."""
        start, end = self.end(left), self.start(right)
        if (at := self.text.find(old, start, end)) >= 0:
            yield at, at + len(old), new


Edit = tuple[int, int, str]


def _edits(function: ast.FunctionDef, at: _Places) -> Iterator[Edit]:
    """Yield all edits inside a function.

    Annotations, decorators, texts such as docstrings, and what ``raise`` raises stay as they are.
    """
    for node in _walk(function):
        yield from _of_expression(node, at)
        yield from _of_statement(node, at)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "cause"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield child
                yield from _walk(child)


def _is_text(node: ast.AST) -> bool:
    node = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(node, ast.JoinedStr)
        or isinstance(node, ast.Constant)
        and isinstance(node.value, str)
    )


def _of_expression(node: ast.AST, at: _Places) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        yield from at.sign(node.left, node.right, SIGNS[type(node.op)], BINARY[type(node.op)])
    elif isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:]):
            yield from at.sign(left, right, *COMPARED[type(operator)])
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            yield from at.sign(left, right, old, new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield at.start(node), at.start(node.operand), ""
    elif isinstance(node, ast.IfExp):
        yield at.start(node), at.end(node), at.of(node.body)
        yield at.start(node), at.end(node), at.of(node.orelse)
    elif isinstance(node, ast.Constant):
        yield from ((at.start(node), at.end(node), new) for new in _other_values(node.value))
    elif isinstance(node, ast.Slice):
        for bound in filter(None, (node.lower, node.upper, node.step)):
            yield at.start(bound), at.end(bound), ""
    elif isinstance(node, ast.Call):
        yield from _of_call(node, at)


def _other_values(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), *([str(value - 1)] if value > 0 else [])]
    return [repr(value * 2)] if isinstance(value, float) else []


def _of_call(node: ast.Call, at: _Places) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id in CALLED:
        yield at.start(node.func), at.end(node.func), CALLED[node.func.id]
    if isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED:
        yield at.end(node.func.value), at.end(node), ""
    commutes = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
    if (
        len(node.args) > 1
        and not commutes
        and not any(isinstance(argument, ast.Starred) for argument in node.args[:2])
    ):
        first, second = node.args[:2]
        between = at.text[at.end(first) : at.start(second)]
        yield at.start(first), at.end(second), at.of(second) + between + at.of(first)
    # A keyword argument is dropped together with the comma before it.
    for keyword in node.keywords:
        start = at.text.rfind(",", at.start(node), at.start(keyword))
        if keyword.arg and start >= at.end(node.func):
            yield start, at.end(keyword), ""


def _of_statement(node: ast.AST, at: _Places) -> Iterator[Edit]:
    if isinstance(node, (ast.If, ast.While)):
        yield at.start(node.test), at.end(node.test), f"not ({at.of(node.test)})"
    if isinstance(node, ast.AugAssign) and type(node.op) in BINARY:
        yield from at.sign(
            node.target, node.value, f"{SIGNS[type(node.op)]}=", f"{BINARY[type(node.op)]}="
        )
        yield from at.sign(node.target, node.value, f"{SIGNS[type(node.op)]}=", "=")
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))
    if stored or isinstance(
        node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.For, ast.With, ast.Continue)
    ):
        yield at.start(node), at.end(node), "pass"
