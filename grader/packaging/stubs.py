"""Makes the stubs in ``handout/`` from the answers in ``solutions/``.

Stubs are never written by hand. Three more files are made from the solutions:
``grader/parameters.json`` has the names of the functions' parameters, which messages show.
``grader/returned_tuples.json`` has the names of the values that a function returns as a tuple.
``grader/functions.json`` lists each problem's functions, so that ``make test K=…`` finds them.

    python -m grader.packaging.stubs            writes these files
    python -m grader.packaging.stubs --check    exits with 1 if a file is different

In a solution, the lines between ``# BEGIN SOLUTION 1.7: ring_all_reduce`` and ``# END SOLUTION``
become ``raise NotImplementedError("Problem 1.7: ring_all_reduce")``. If the marker has no number,
the lines between the markers are removed and not replaced. The markers themselves are always
removed. All other lines stay.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN = re.compile(r"( *)# BEGIN SOLUTION(?: (?P<problem>\S.*))?")
END = re.compile(r" *# END SOLUTION")
# Matches a line that looks like a marker. Every such line must be a marker.
LIKE_A_MARKER = re.compile(r"\s*#\W*(begin|end)\W*solution", re.IGNORECASE)
# Matches a function or a class whose docstring begins with the number of its problem.
DEFINED = re.compile(
    r'^(?:def|class) (\w+)(?:(?!\n(?:def|class) ).)*?:\n +"""Problem (\d+\.\d+) ',
    re.MULTILINE | re.DOTALL,
)
# Matches the part of a docstring that names the values of a returned tuple.
RETURNED_TUPLE = re.compile(r"^Returns:\s+``\((\w+(?:, \w+)+)\)``", re.MULTILINE)


def stub(solution: str) -> str:
    """Return the text of the stub.

    Raise ValueError if the markers do not pair up, or if a comment looks like a marker but is none.
    Also raise ValueError if the stub of a problem's function, or of a method of its class, does not
    raise NotImplementedError.
    """
    kept, inside = [], None
    for line in solution.splitlines():
        if begin := BEGIN.fullmatch(line):
            if inside:
                raise ValueError(f"a solution begins inside another: {line.strip()}")
            inside = begin
            if begin["problem"]:
                kept.append(f'{begin[1]}raise NotImplementedError("Problem {begin["problem"]}")')
        elif END.fullmatch(line):
            if not inside:
                raise ValueError("a solution ends, but has not begun")
            # One or two blank lines replace all blank lines before the removed lines. Otherwise
            # the blank lines between several removed blocks would add up.
            if not inside["problem"]:
                while kept and not kept[-1].strip():
                    kept.pop()
                kept.extend([""] if inside[1] else ["", ""])
            inside = None
        elif LIKE_A_MARKER.match(line):
            raise ValueError(
                f"“{line.strip()}” is no marker. The markers are “# BEGIN SOLUTION”, “# BEGIN"
                " SOLUTION 1.7: ring_all_reduce” and “# END SOLUTION”, each on a line of its own"
            )
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError(f"a solution does not end: {inside.group().strip()}")
    text = "\n".join(kept) + "\n"
    if problems := dict(DEFINED.findall(solution)):
        _require_no_answers(text, problems)
    return text


def _require_no_answers(text: str, problems: dict[str, str]) -> None:
    """Raise ValueError if the answer of a function, or of a method of a class, is in the stub.

    ``problems`` has the problem's number of each function and class.
    """
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in problems:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            for function in inner:
                if not isinstance(function, ast.FunctionDef):
                    continue
                own = node.name if function is node else f"{node.name}.{function.name}"
                begin = f"Problem {problems[node.name]}:"
                raised = {f'NotImplementedError("{begin} {name}")' for name in (node.name, own)}
                source = ast.get_source_segment(text, function) or ""
                if not any(line in source for line in raised):
                    raise ValueError(
                        f"students would get the answer of {own}: the answer needs the markers"
                        f" “# BEGIN SOLUTION {problems[node.name]}: {own}” and “# END SOLUTION”"
                    )


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "solutions").glob("*.py") if path.name != "__init__.py")


def parameters(module: str, solution: str) -> dict[str, list[str]]:
    """Return the names of the parameters of each public function in a solution."""
    return {
        f"{module}.{node.name}": [argument.arg for argument in node.args.args]
        for node in ast.parse(solution, f"{module}.py").body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def returned_tuples(module: str, solution: str) -> dict[str, list[str]]:
    """Return the names of the values that each public function returns, if it returns a tuple.

    The docstring has the names, as in "Returns: ``(loss, gradients)``".
    """
    named = {}
    for node in ast.parse(solution, f"{module}.py").body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.returns:
            found = RETURNED_TUPLE.search(ast.get_docstring(node) or "")
            if found and ast.unparse(node.returns).startswith("tuple["):
                named[f"{module}.{node.name}"] = found[1].split(", ")
    return named


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each file that is made from the solutions, and its text.

    Raise ValueError with the name of a solution from which no stub can be made.
    """
    names: dict[str, list[str]] = {}
    tuples: dict[str, list[str]] = {}
    functions: dict[str, list[str]] = {}
    for source in sources():
        try:
            solution = source.read_text("utf-8")
            names |= parameters(source.stem, solution)
            tuples |= returned_tuples(source.stem, solution)
            text = stub(solution)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"solutions/{source.name}: {error}") from None
        for function, problem in DEFINED.findall(solution):
            functions.setdefault(problem, []).append(function)
        yield ROOT / "handout" / source.name, text
    yield ROOT / "grader" / "parameters.json", _lists(names)
    yield ROOT / "grader" / "returned_tuples.json", _lists(tuples)
    yield ROOT / "grader" / "functions.json", _lists(functions)


def _lists(named: dict[str, list[str]]) -> str:
    """Return a JSON object of lists, one list a line, sorted by name."""
    lines = (f"  {json.dumps(name)}: {json.dumps(named[name])}" for name in sorted(named))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    stale = []
    try:
        made = list(generated())
    except (OSError, ValueError) as error:
        print(f"cannot make the stubs: {error}", file=sys.stderr)
        return 2
    for target, text in made:
        if not target.exists() or target.read_text("utf-8") != text:
            stale.append(target.name)
            if "--check" not in sys.argv:
                target.write_text(text, "utf-8")
    if stale:
        print(
            ("different from what the solutions generate: " if "--check" in sys.argv else "wrote ")
            + ", ".join(stale)
        )
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
