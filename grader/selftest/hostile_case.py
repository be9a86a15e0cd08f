'''Define the format of a hostile case, and its class.

A case is a submission that tries something, and the verdict that it must get. One file in
``hostile/`` holds one case. The file begins with a header, a docstring of this form:

    """Leaves a daemon of its own session.

    threat: 13
    full: 1.6
    """

Its first paragraph says what the submission does. Lines of ``key: value`` follow. Only ``threat``
must be there:

    threat     number of a row of ``THREATS``
    part       the part whose checks are run, or "all"; default collectives
    control    problem that keeps full marks whatever happens, or "none"; by default 1.4, 2.1, 3.1,
               4.1 or 5.1, by the part, and 3.1 for all parts
    full       more problems that keep full marks: "1.6" for all its checks, "public 1.6" or
               "hidden 1.6" for these checks alone
    zero       problems that get no marks
    some       problems of which at least one check loses marks
    runs       more problems that are run, with any result
    status     status of every check of ``zero``
    says       words that a message of a check that lost marks must hold; one line for each text
    note       words that the output for the whole submission must hold; one line for each text
    never      words that no output may hold, in addition to those that no output of any case may
               hold; one line for each text
    base       "solutions" or "handout": the files to begin with; a file of the case replaces the
               file of the same name
    extends    the same, but a file of the case is appended to the file of the same name
    alone      yes: ``hostile/preamble.py`` is not put in front of collectives.py
    seconds    seconds that grading may take; default 40
    contained  yes: grade as in a container, where no rank gets a namespace of its own for shared
               memory and message queues
    unless TIER, TIER
               the gap of these tiers that excuses a failure of the case, in the words of
               ``Tier.gaps``; "any" means all tiers. If the gap does not let an attack reach the
               grader or its files, it excuses only points, words and ACHIEVED: see
               ``hostile_verdict.Faults``

A text file cannot hold some things. They are made when the submission is built. Names are those in
the submission:

    removed    files of the base to leave out
    folders    empty folders
    fifos      named pipes
    links      symbolic links: NAME = TARGET, NAME = TARGET
    binary     files in hexadecimal: NAME = 780a00. A name may be hexadecimal, too:
               hex:ff2e7079 = 00
    repeated   a long file: NAME = "text" * times
    zipped     yes: the submission is a zip with these files and links
    entries    number of empty files that the zip also has
    junk       the submission is a file with this text, called submission.zip

A text in double quotes is read as JSON, and may be repeated: "E" * 1000. In code, in links and in
the name of a repeated file of a zip, @TOKEN@ and other names between @ signs are filled in (see
``hostile/preamble.py``).

The code below the header is the part's file, PART.py. With "part: all" it is collectives.py. A
marker begins another file:

    # --- file: NAME        code; without any code, the file is what the base or the preamble gives
    # --- text: NAME        text that is not Python or must not be formatted; each line is a comment
    # --- compiled: NAME    code of which only the compiled form is handed in, in __pycache__
'''

from dataclasses import dataclass, field

# What submissions do, by accident or on purpose. Each text continues the words "a submission".
THREATS = {
    1: "is the untouched handout",
    2: "lacks a file, or names it differently",
    3: "cannot be imported",
    4: "raises on one rank while the others wait",
    5: "deadlocks",
    6: "runs for ever",
    7: "is right",
    8: "is right, and unusual",
    9: "returns what is no result",
    10: "changes its inputs",
    11: "exits, dies, or runs out of memory",
    12: "prints, writes files, or starts processes without end",
    13: "leaves something behind",
    14: "writes what is not its own",
    15: "reads or signals what is not its own",
    16: "imports solutions or references",
    17: "ships files that tools would run",
    18: "ships links, pipes, bad archives or bad text",
    19: "patches what it is judged with",
    20: "sends forged, broken or too many messages to the grader",
    21: "searches its process for expected values",
    22: "gets other ranks' data without communicating",
    23: "knows the test, or behaves differently the second time",
    24: "fakes a measurement",
    25: "connects to other machines",
    26: "puts markup, escapes or megabytes into messages",
    27: "calls what a problem forbids",
}


@dataclass(frozen=True)
class Case:
    """One hostile case. Most fields are the keys of a header, and ``full`` includes the control.

    ``name`` is the file's name, ``tries`` the first paragraph of the header. ``files`` and
    ``compiled`` map names to texts.
    """

    name: str
    tries: str
    threat: int
    part: str = "collectives"
    full: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    status: str = ""
    says: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    base: str = ""
    extends: str = ""
    alone: bool = False
    seconds: int = 40
    contained: bool = False
    unless: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    fifos: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    binary: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, tuple[str, int]] = field(default_factory=dict)
    zipped: bool = False
    entries: int = 0
    junk: str = ""
    files: dict[str, str] = field(default_factory=dict, repr=False)
    compiled: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def problems(self) -> list[str]:
        """Return the numbers of all problems that are run."""
        return sorted(
            {word.split()[-1] for word in (*self.full, *self.zero, *self.some, *self.runs)}
        )

    @property
    def options(self) -> list[str]:
        """Return the grader's options that choose these problems."""
        return [f"--problem={number}" for number in self.problems] + (
            [f"--part={self.part}"] if self.part else []
        )
