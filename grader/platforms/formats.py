"""Lists the formats that ``python -m grader --format NAME=FILE`` writes besides results.json."""

from collections.abc import Callable, Iterable

from grader.atomic_write import written_whole
from grader.platforms import autolab, github, junit, prairielearn, shown
from grader.platforms.targets import Target


def reward(document: dict) -> str:
    """Return the text of Harbor's reward.txt: the share of all points, extra credit included.

    A task for agents measures one part. The course's rules for extra credit are not used there.
    """
    got, most = (sum(test[key] for test in document["tests"]) for key in ("score", "max_score"))
    return f"{shown.share(got, most)}\n"


# Each function turns the document of reports/results_json.py into the text of a file.
FORMATS: dict[str, Callable[[dict], str]] = {
    "autolab": autolab.text,
    "github-annotations": github.annotations,
    "github-summary": github.summary,
    "junit": junit.text,
    "prairielearn": prairielearn.text,
    "reward": reward,
}


def write(targets: Iterable[Target], document: dict) -> None:
    """Write a file in each of these formats. Each file is written whole or not at all."""
    for name, path in targets:
        with written_whole(path) as file:
            file.write(FORMATS[name](document).encode())
