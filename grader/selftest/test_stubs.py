"""The handout is the solutions without the answers, and makes the same promises."""

import ast
import re

import pytest

from grader.packaging import stubs
from grader.packaging.stubs import BEGIN, END, ROOT, sources, stub

SOLUTIONS = pytest.mark.parametrize("source", sources(), ids=lambda path: path.stem)
HANDOUT = sorted((ROOT / "handout").rglob("*.py"))


# ——— small texts


def test_an_answer_becomes_an_error_that_names_its_problem():
    solution = """def f(x):
    \"\"\"Doubles.\"\"\"
    # BEGIN SOLUTION 1.7: f
    y = x
    return 2 * y
    # END SOLUTION


def g():
    return 1
"""
    assert stub(solution) == """def f(x):
    \"\"\"Doubles.\"\"\"
    raise NotImplementedError("Problem 1.7: f")


def g():
    return 1
"""


def test_a_region_without_a_number_vanishes_with_its_blank_lines():
    solution = """import a


# BEGIN SOLUTION
def helper():
    return 1


# END SOLUTION
def f():
    return 2


class C:
    x = 1

    # BEGIN SOLUTION
    def helper(self):
        return 1

    # END SOLUTION
    def f(self):
        return 2
"""
    assert stub(solution) == """import a


def f():
    return 2


class C:
    x = 1

    def f(self):
        return 2
"""


@pytest.mark.parametrize(
    "text", ["", "x = 1\n", "# BEGINNING\n", 's = "# BEGIN SOLUTION"\n', "x = 1  # END SOLUTION\n"]
)
def test_what_holds_no_marker_is_kept(text):
    assert stub(text).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    "lines, words",
    [
        (
            ["# BEGIN SOLUTION 1: a", "# BEGIN SOLUTION 2: b", "# END SOLUTION"],
            "inside another: # BEGIN SOLUTION 2: b",
        ),
        (
            ["# BEGIN SOLUTION", "# BEGIN SOLUTION", "# END SOLUTION", "# END SOLUTION"],
            "inside another",
        ),
        (["# BEGIN SOLUTION 1: a", "x = 1"], "does not end: # BEGIN SOLUTION 1: a"),
        (["# BEGIN SOLUTION"], "does not end"),
        (["x = 1", "# END SOLUTION"], "has not begun"),
        (["# BEGIN SOLUTION", "# END SOLUTION", "# END SOLUTION"], "has not begun"),
    ],
)
def test_markers_that_do_not_pair_up_are_refused(lines, words):
    with pytest.raises(ValueError, match=words):
        stub("\n".join(lines))


@pytest.mark.parametrize(
    "line", ["#BEGIN SOLUTION 1.4: f", "# Begin Solution", "## END SOLUTION", "# END-SOLUTION 1.4"]
)
def test_a_comment_that_looks_like_a_marker_is_refused(line):
    with pytest.raises(ValueError, match=f"“{line}” is no marker"):
        stub(f"def f():\n    {line}\n    return 1\n")


def test_a_problem_without_markers_is_refused():
    text = 'def f(x):\n    """Problem 1.8 · Double."""\n    return 2 * x\n'
    with pytest.raises(ValueError, match="students would get the answer of f: the answer needs"):
        stub(text)
    marked = text.replace("    return", "    # BEGIN SOLUTION 1.7: f\n    return")
    with pytest.raises(ValueError, match="“# BEGIN SOLUTION 1.8: f”"):
        stub(marked + "    # END SOLUTION\n")


def test_a_method_without_markers_is_refused():
    text = """class G:
    \"\"\"Problem 3.5 · Keep.\"\"\"

    def __init__(self):
        self.kept = []

    def wait(self):
        # BEGIN SOLUTION 3.5: G.wait
        return 1
        # END SOLUTION
"""
    with pytest.raises(ValueError, match="the answer of G.__init__: the answer needs"):
        stub(text)
    begin, end = "        # BEGIN SOLUTION 3.5: G\n", "        # END SOLUTION\n"
    line = "        self.kept = []\n"
    assert "self.kept" not in stub(text.replace(line, begin + line + end))
    other = (
        'def g(x):\n    """Problem 3.5 · Add."""\n    # BEGIN SOLUTION 3.5: g_more\n    return x\n'
    )
    with pytest.raises(ValueError, match="the answer of g: the answer needs"):
        stub(other + "    # END SOLUTION\n")


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("# BEGIN SOLUTION\n", "a solution does not end"),
        ("def f(:\n", "invalid syntax (broken.py, line 1)"),
        ("x = '\udce9'\n", "'utf-8' codec can't decode"),
    ],
)
def test_what_is_no_solution_is_told_in_a_sentence(text, sentence, tmp_path, monkeypatch, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text(text, "utf-8", "surrogateescape")
    monkeypatch.setattr(stubs, "sources", lambda: [broken])
    assert stubs.main() == 2
    printed = capsys.readouterr().err
    assert printed.startswith("cannot make the stubs: solutions/broken.py: ")
    assert sentence in printed


# ——— the real ones


def test_there_are_solutions():
    """If there were no solutions, the tests below would be empty."""
    assert {"collectives", "data_parallel"} <= {path.stem for path in sources()}


@SOLUTIONS
def test_the_handout_is_what_the_solution_generates(source):
    assert (ROOT / "handout" / source.name).read_text() == stub(source.read_text())


def public(tree: ast.Module) -> dict[str, str]:
    """Return the promises of a module.

    These are its public functions, classes and methods, with their signatures and docstrings.
    """
    found = {"": ast.get_docstring(tree)}

    def visit(body: list, prefix: str) -> None:
        for node in body:
            name = getattr(node, "name", "_")
            if name.startswith("_") and not name.startswith("__"):
                continue
            if isinstance(node, ast.ClassDef):
                found[prefix + name] = [*map(ast.unparse, node.bases), ast.get_docstring(node)]
                visit(node.body, f"{prefix}{name}.")
            elif isinstance(node, ast.FunctionDef):
                returns = ast.unparse(node.returns) if node.returns else None
                found[prefix + name] = [ast.unparse(node.args), returns, ast.get_docstring(node)]

    visit(tree.body, "")
    return found


@SOLUTIONS
def test_the_stub_promises_what_the_solution_does(source):
    promises = public(ast.parse((ROOT / "handout" / source.name).read_text()))
    assert len(promises) > 1 and promises == public(ast.parse(source.read_text()))


@SOLUTIONS
def test_a_function_that_returns_a_tuple_names_its_values(source):
    """Messages contain these names: "must return a tuple of 2 values, (loss, gradients)"."""
    module, tree = source.stem, ast.parse(source.read_text())
    counts = {
        f"{module}.{node.name}": len(node.returns.slice.elts)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and ast.unparse(node.returns).startswith("tuple[")
    }
    named = stubs.returned_tuples(module, source.read_text())
    assert {name: len(names) for name, names in named.items()} == counts


@SOLUTIONS
def test_everything_public_says_what_it_does(source):
    assert [
        name
        for name, (*_, docstring) in public(ast.parse(source.read_text())).items()
        if not docstring
    ] == []


def regions(text: str) -> list[str]:
    """Return the lines that are taken out for the handout."""
    found, inside = [], False
    for line in text.splitlines():
        if BEGIN.fullmatch(line) or END.fullmatch(line):
            inside = BEGIN.fullmatch(line) is not None
        elif inside:
            found.append(line)
    return found


# These lines are long enough for the search, but say nothing about an answer.
ORDINARY = {"for weight in weights:"}


@pytest.mark.parametrize("source", sources(), ids=lambda path: path.stem)
def test_no_line_of_an_answer_stands_in_the_handout(source):
    def code(line: str) -> str:
        return re.sub(r"\s+", " ", line.partition("  #")[0].strip())

    answers = {code(line) for line in regions(source.read_text())}
    answers = {line for line in answers - ORDINARY if len(line) > 20 and not line.startswith("#")}
    assert answers
    # The calculus is given, so its lines may be in the handout.
    taught = (path for path in HANDOUT if path.name != "mlp.py")
    given = {code(line): path.name for path in taught for line in path.read_text().splitlines()}
    assert {line: given[line] for line in answers & given.keys()} == {}


@SOLUTIONS
def test_nothing_but_stubs_is_left_to_be_implemented(source):
    """Every numbered region leaves one error, and the helpers of the solution are gone."""
    text = (ROOT / "handout" / source.name).read_text()
    numbered = [
        match["problem"]
        for line in source.read_text().splitlines()
        if (match := BEGIN.fullmatch(line))
    ]
    assert re.findall(r'raise NotImplementedError\("Problem (.+)"\)', text) == [
        p for p in numbered if p
    ]
    assert "SOLUTION" not in text


def test_the_lines_that_are_taken_out_are_found():
    assert regions("a\n# BEGIN SOLUTION 1: f\n    secret = 1  # why\n# END SOLUTION\nb") == [
        "    secret = 1  # why"
    ]
