"""The limit of submissions, on a model of the platform and on what the platform may leave out."""

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import jsonschema
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from grader.course_file import Limit
from grader.gradescope.metadata import Earlier, Upload
from grader.gradescope.rate_limit import decide
from grader.selftest.grading import ROOT

SCHEMA = json.loads((ROOT / "grader" / "selftest" / "results.schema.json").read_text())
ZONE = timezone(timedelta(hours=-8))
NOON = datetime(2030, 1, 10, 12, tzinfo=ZONE)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def graded(text: str = "seed 1", **more) -> dict:
    """Return results as the grader writes them."""
    test = {
        "score": 2.0,
        "max_score": 10.0,
        "name": "1.1 Name",
        "number": "1.1",
        "status": "failed",
        "output": "No.",
    }
    return {
        "output": text,
        "extra_data": {"seed": 1},
        "tests": [test | {"visibility": "visible"}],
    } | more


# ——— a model of the platform


@dataclass
class Run:
    """A run of the autograder for a submission. The platform shows the run from ``ended`` on."""

    ended: datetime
    error: bool
    results: dict | None
    refused: bool = False

    @property
    def graded(self) -> bool:
        return not (self.error or self.refused)


@dataclass
class Submission:
    number: int
    created: datetime
    runs: list[Run] = field(default_factory=list)

    def seen(self, when: datetime) -> Run | None:
        return next((run for run in reversed(self.runs) if run.ended <= when), None)

    def was_graded(self, when: datetime) -> bool:
        """Return whether the run after the upload has graded the submission by ``when``."""
        return self.runs[0].graded and self.runs[0].ended <= when

    def ever_graded(self, when: datetime) -> bool:
        """Return whether a run has graded the submission by ``when``. A regrade counts, too."""
        return any(run.graded and run.ended <= when for run in self.runs)


@dataclass
class Platform:
    """Keeps the submissions of one student.

    ``lists`` says which other submissions the metadata list: earlier ones, all others, or all of
    them.
    """

    file: Path
    limit: Limit
    lists: str
    submissions: list[Submission] = field(default_factory=list)

    def metadata(self, one: Submission, now: datetime) -> dict:
        listed = {
            "earlier": [other for other in self.submissions if other.created < one.created],
            "others": [other for other in self.submissions if other is not one],
            "all": [other for other in self.submissions if other is not one or one.runs],
        }[self.lists]
        previous = []
        for other in listed:
            run, utc = other.seen(now), other.created.astimezone(timezone.utc)
            entry = {"submission_time": utc.isoformat().replace("+00:00", "Z"), "score": None}
            entry["autograder_error"] = bool(run and run.error)
            if run:
                entry["score"] = 0.0 if run.error else 2.0
            if run and run.results and other is listed[-1]:
                entry["results"] = run.results
            previous.append(entry)
        return {
            "id": one.number,
            "created_at": one.created.isoformat(),
            "previous_submissions": previous,
        }

    def decide(self, one: Submission, now: datetime):
        self.file.write_text(json.dumps(self.metadata(one, now)))
        upload = Upload.read(self.file)
        assert not upload.complaints
        return decide(self.limit, upload, now)

    def run(self, one: Submission, start: datetime, takes: timedelta, crashes: bool):
        """Do what the platform and upload.main do in a run, and return the decision."""
        decision = self.decide(one, start)
        if decision.instead:
            json.dumps(decision.instead, allow_nan=False)
            one.runs.append(Run(start, False, decision.instead, refused=True))
        elif crashes:
            one.runs.append(Run(start + takes, True, None))
        else:
            document = graded(f"submission {one.number}, run {len(one.runs)}")
            decision.remember(document)
            one.runs.append(Run(start + takes, False, document))
        return decision

    def probe(self, when: datetime):
        """Return the decision about an upload at this time, without leaving a trace."""
        one = Submission(-1, when)
        self.submissions.append(one)
        decision = self.decide(one, when)
        self.submissions.pop()
        return decision

    def between(self, since: datetime, until: datetime) -> list[Submission]:
        return [one for one in self.submissions if since < one.created < until]


@dataclass
class Event:
    when: datetime
    kind: str  # an upload; or a regrade of one submission, or of all
    which: int = 0
    queue: timedelta = timedelta(0)
    takes: timedelta = MINUTE
    crashes: bool = False


@st.composite
def weeks(draw, crashes: bool, overlap: bool, regrades: bool) -> list[Event]:
    """Draw uploads and regrades in the order of their times. Some seconds are no whole minutes."""
    gap = (
        st.integers(1, 180) | st.integers(180, 12 * 3600)
        if overlap
        else st.integers(300, 12 * 3600)
    )
    events, now = [], NOON
    for _ in range(draw(st.integers(2, 20))):
        now += timedelta(seconds=draw(gap))
        if regrades and draw(st.integers(0, 5)) == 0:
            events.append(
                Event(now, draw(st.sampled_from(["one", "all"])), draw(st.integers(0, 30)))
            )
        else:
            takes = timedelta(seconds=draw(st.integers(1, 240)))
            crash = crashes and draw(st.integers(0, 4)) == 0
            events.append(
                Event(now, "upload", 0, timedelta(seconds=draw(st.integers(0, 40))), takes, crash)
            )
    return events


LIMITS = st.builds(
    lambda most, hours: Limit(submissions=most, hours=hours),
    st.integers(1, 4),
    st.sampled_from([1, 6, 24]),
)
LISTS = st.sampled_from(["earlier", "others", "all"])


def told(document: dict) -> datetime:
    found = re.search(r"at (\d+-\d+-\d+ \d+:\d+) UTC-08:00 or later", document["output"])
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M").replace(tzinfo=ZONE)


class Week:
    """Plays the events, and checks what must always hold.

    With ``exact``, nothing fails or overlaps, so nothing is in doubt.
    """

    def __init__(self, platform: Platform, exact: bool) -> None:
        self.platform, self.exact = platform, exact
        self.window = timedelta(hours=platform.limit.hours)
        self.most = platform.limit.submissions
        self.promises: list[datetime] = []
        self.extra: list[datetime] = []  # times of submissions graded although they were too many
        self.refusals = 0
        self.regraded = False

    def play(self, events: list[Event]) -> None:
        for this in events:
            self.keep_promises(this.when)
            if this.kind == "upload":
                self.upload(this)
                continue
            old = [
                one for one in self.platform.submissions if one.created + 10 * MINUTE <= this.when
            ]
            self.regraded = True
            for one in old if this.kind == "all" else old[this.which : this.which + 1]:
                decision = self.platform.run(one, this.when, this.takes, False)
                assert decision.instead is None, "a regrade was refused"
                if one.runs[0].error:  # the submission counts from now on
                    self.extra += [one.created, this.when]
                    self.promises.clear()
        self.keep_promises(NOON + timedelta(days=30))

    def keep_promises(self, until: datetime) -> None:
        due = [promise for promise in self.promises if promise < until]
        for promise in due:
            assert (
                self.platform.probe(promise).instead is None
            ), "the time that was told does not work"
        self.promises = [promise for promise in self.promises if promise >= until]

    def upload(self, this: Event) -> None:
        one = Submission(len(self.platform.submissions), this.when)
        self.platform.submissions.append(one)
        start = this.when + this.queue
        decision = self.platform.run(one, start, this.takes, this.crashes)
        window = self.platform.between(one.created - self.window, one.created)
        # How many submissions were lately graded although they were too many: in doubt, or because
        # others had not ended. A later failure can hide this.
        unsure = sum(one.created - 2 * self.window < time < one.created for time in self.extra)
        assert not (self.exact and unsure)
        if decision.instead is None:
            if decision.note or sum(other.runs[0].graded for other in window) >= self.most:
                self.extra.append(one.created)
                self.promises.clear()  # this submission counts, too
            # A message names a whole minute. This upload may have come in the seconds between the
            # end of the limit and that minute.
            self.promises = [
                promise for promise in self.promises if promise >= one.created + MINUTE
            ]
            if not decision.note:
                known = sum(other.was_graded(start) for other in window)
                assert known < self.most + unsure, "more are graded than the limit"
            return
        self.refusals += 1
        known = sum(other.ever_graded(start) for other in window)
        assert known >= self.most - unsure, "refused, although fewer than the limit were graded"
        self.results_are_kept(one, start, decision.instead)
        again = told(decision.instead)
        assert again > one.created
        self.promises.append(again)
        early = again - MINUTE - timedelta(seconds=1)
        if early > start + 5 * MINUTE and all(other.seen(start) for other in window):
            assert self.platform.probe(early).instead, "an earlier time would have worked, too"

    def results_are_kept(self, one: Submission, start: datetime, document: dict) -> None:
        note, shown = document["output"].split("\n")
        assert note.startswith("Not graded: ")
        earlier = self.platform.between(NOON, one.created)
        assert shown == earlier[-1].seen(start).results["output"].split("\n")[-1]
        if not self.regraded:
            latest = [other for other in earlier if other.was_graded(start)][-1]
            assert shown == f"submission {latest.number}, run 0", "these are not the latest results"


def play(tmp_path_factory, limit: Limit, lists: str, events: list[Event], exact: bool) -> Week:
    week = Week(Platform(tmp_path_factory.getbasetemp() / "metadata.json", limit, lists), exact)
    week.play(events)
    event(f"{min(3, week.refusals)} or more refused")
    return week


@pytest.mark.long
@settings(max_examples=100)
@given(LIMITS, LISTS, weeks(crashes=False, overlap=False, regrades=True))
def test_a_week_of_uploads_and_regrades(tmp_path_factory, limit, lists, events):
    play(tmp_path_factory, limit, lists, events, exact=True)


@pytest.mark.long
@settings(max_examples=100)
@given(LIMITS, LISTS, weeks(crashes=True, overlap=True, regrades=False))
def test_a_week_in_which_the_autograder_fails_and_uploads_overlap(
    tmp_path_factory, limit, lists, events
):
    play(tmp_path_factory, limit, lists, events, exact=False)


@settings(max_examples=100)
@given(LIMITS, LISTS, weeks(crashes=True, overlap=True, regrades=True))
@pytest.mark.long
def test_a_week_in_which_failures_are_graded_again(tmp_path_factory, limit, lists, events):
    play(tmp_path_factory, limit, lists, events, exact=False)


# ——— what the platform may leave out, one by one


def earlier(*hours: float, **more) -> list[Earlier]:
    """Return earlier submissions, the oldest first. Only the latest comes with its results."""
    found = [Earlier(NOON - h * HOUR) for h in hours[:-1]]
    return [*found, Earlier(NOON - hours[-1] * HOUR, results=graded(**more))]


def upload(*others: Earlier, created: datetime = NOON, id: int | None = 9) -> Upload:
    return Upload(id=id, created=created, others=sorted(others, key=lambda one: one.time))


def entry(hours: float, was_graded: bool = True, id: int | None = None) -> dict:
    return {"id": id, "time": (NOON - hours * HOUR).isoformat(), "graded": was_graded}


DAILY = {n: Limit(submissions=n, hours=24) for n in (1, 2, 3)}


def test_one_too_many_gets_the_results_of_the_one_before():
    found = decide(DAILY[2], upload(*earlier(30, 23, 2)), NOON).instead
    assert found["tests"] == graded()["tests"] and found["extra_data"]["not_graded"] is True
    assert found["extra_data"]["seed"] == 1 and told(found) == NOON + HOUR
    assert "the limit is 2 submissions in 24 hours" in found["output"] and found["output"].endswith(
        "\nseed 1"
    )
    jsonschema.validate(found, SCHEMA)


def test_a_limit_of_one_hour_is_told_in_the_singular():
    found = decide(Limit(submissions=1, hours=1), upload(*earlier(0.5)), NOON).instead
    assert "the limit is 1 submission in 1 hour. " in found["output"]


def test_the_time_is_told_in_whole_minutes_and_not_too_early():
    created = NOON - 2 * HOUR + timedelta(seconds=1)
    found = decide(DAILY[1], upload(Earlier(created, results=graded())), NOON).instead
    assert told(found) == NOON + 22 * HOUR + MINUTE


def test_refusals_do_not_count_and_their_sentences_do_not_add_up():
    history, document = [Earlier(NOON - 2 * HOUR, results=graded())], None
    for n in range(1, 40):
        now = NOON + n * MINUTE
        document = decide(DAILY[1], upload(*history, created=now, id=n), now).instead
        assert told(document) == NOON + 22 * HOUR and document["output"].count("Not graded") == 1
        history = [Earlier(one.time) for one in history] + [Earlier(now, results=document)]
    later = NOON + 22 * HOUR
    assert decide(DAILY[1], upload(*history, created=later), later).instead is None


@pytest.mark.parametrize(
    "most, others",
    [
        (1, []),
        (1, earlier(24)),  # just long enough ago
        (2, earlier(30, 25)),
        (3, earlier(23, 2)),
        (1, [Earlier(NOON - HOUR)]),  # no earlier submission has results that can be shown again
        (1, [Earlier(NOON - HOUR, scored=False)]),  # still being graded
        (1, [Earlier(NOON - HOUR, error=True, results=graded())]),  # failed: does not count
        # The only results are those of a failure.
        (1, [Earlier(NOON - 2 * HOUR), Earlier(NOON - HOUR, error=True, results=graded())]),
        (1, [Earlier(NOON - HOUR, results=graded(tests=[]))]),
        (1, [Earlier(NOON - HOUR, results=graded(tests=[{"score": float("nan")}]))]),
        (1, [Earlier(NOON - HOUR, results=graded(text="\ud800"))]),
        # A later submission is listed, so this is a regrade.
        (1, [Earlier(NOON - HOUR, results=graded()), Earlier(NOON + HOUR)]),
        (1, [Earlier(NOON - HOUR, results=graded()), Earlier(NOON)]),  # itself listed: a regrade
        (1, earlier(2, extra_data={"uploads": [entry(2, False)]})),  # a refusal
        # The upload is known already, so this is a regrade.
        (1, earlier(2, extra_data={"uploads": [entry(2), entry(0, False, id=9)]})),
        (2, earlier(3, 2, extra_data={"uploads": [entry(3, False), entry(2)]})),
    ],
)
def test_others_are_graded(most, others):
    assert decide(DAILY[most], upload(*others), NOON).instead is None


def test_a_run_long_after_the_upload_is_a_regrade_and_does_not_count_if_it_was_refused():
    one = upload(*earlier(2))
    assert decide(DAILY[1], one, NOON + 9 * MINUTE).instead
    assert decide(DAILY[1], one, NOON - 9 * HOUR).instead  # a clock that is behind
    decision, document = decide(DAILY[1], one, NOON + 10 * MINUTE), graded()
    assert decision.instead is None and "regrade" in decision.note
    decision.remember(document)
    assert [past["graded"] for past in document["extra_data"]["uploads"]] == [True, False]
    allowed, document = decide(DAILY[2], one, NOON + 10 * MINUTE), graded()
    allowed.remember(document)
    assert [past["graded"] for past in document["extra_data"]["uploads"]] == [
        True,
        True,
    ] and not allowed.note


def test_what_is_known_of_a_submission_stays_in_a_regrade():
    known = earlier(2, extra_data={"uploads": [entry(2), entry(0, False, id=9)]})
    document = graded()
    decide(DAILY[3], upload(*known), NOON).remember(document)
    assert [past["graded"] for past in document["extra_data"]["uploads"]] == [True, False]


def test_without_a_list_it_is_worked_out_who_was_graded():
    found = decide(DAILY[2], upload(*earlier(*range(23, 0, -1))), NOON).instead
    assert [past["graded"] for past in found["extra_data"]["uploads"]] == [True, True] + [
        False
    ] * 22
    assert told(found) == NOON + HOUR


def test_the_time_that_is_told_leaves_room_for_one_that_is_still_being_graded():
    first, running, latest = (
        Earlier(NOON - h * HOUR, scored=h != 3, results=graded() if h == 2 else None)
        for h in (5, 3, 2)
    )
    assert told(decide(DAILY[2], upload(first, running, latest), NOON).instead) == NOON + 21 * HOUR


def test_one_graded_in_doubt_counts():
    decision = decide(DAILY[1], upload(*earlier(3)[:1], Earlier(NOON - HOUR, error=True)), NOON)
    document = graded()
    assert decision.instead is not None  # the older results, if the platform gives them
    decision = decide(
        DAILY[1], upload(Earlier(NOON - 3 * HOUR), Earlier(NOON - HOUR, error=True)), NOON
    )
    assert (
        decision.instead is None
        and "no earlier submission has results that can be shown again" in decision.note
    )
    decision.remember(document)
    assert [past["graded"] for past in document["extra_data"]["uploads"]] == [True, False, True]


@pytest.mark.parametrize(
    "uploads",
    [
        None,
        3,
        "x",
        [3],
        [None],
        [{}],
        [{"time": 3, "graded": False}],
        [entry(2) | {"graded": 0}],
        [{"graded": False}],
    ],
)
def test_a_list_that_is_not_as_we_write_it_is_worked_out_again(uploads):
    found = decide(DAILY[1], upload(*earlier(2, extra_data={"uploads": uploads})), NOON).instead
    assert [past["graded"] for past in found["extra_data"]["uploads"]] == [True, False]


def test_a_time_in_another_precision_is_the_same_submission():
    seconds = (NOON - 2 * HOUR + timedelta(microseconds=400)).isoformat()
    uploads = [entry(2, False) | {"time": seconds}]
    assert (
        decide(DAILY[1], upload(*earlier(2, extra_data={"uploads": uploads})), NOON).instead is None
    )


def test_without_a_limit_all_are_remembered_as_graded():
    document = graded()
    decide(Limit(), upload(*earlier(*range(20, 0, -1))), NOON).remember(document)
    assert all(past["graded"] for past in document["extra_data"]["uploads"])
    assert document["extra_data"]["uploads"][-1] == entry(0, True, id=9)


def test_without_a_time_the_list_is_handed_on():
    uploads, document = [entry(2, False, 3), entry(1, True, 4)], graded()
    others = earlier(1, extra_data={"uploads": uploads})
    decision = decide(DAILY[1], Upload(id=9, others=others), NOON)
    decision.remember(document)
    assert decision.instead is None and document["extra_data"]["uploads"] == uploads


@pytest.mark.long
def test_the_limit_holds_after_many_submissions():
    times = [NOON - n * MINUTE for n in range(20_000, 0, -1)]
    uploads = [
        {"id": None, "time": time.isoformat(), "graded": n % 100 == 0}
        for n, time in enumerate(times)
    ]
    others = [Earlier(time) for time in times[:-1]] + [
        Earlier(times[-1], results=graded(extra_data={"uploads": uploads}))
    ]
    found = decide(Limit(submissions=14, hours=24), upload(*others), NOON).instead
    assert sum(past["graded"] for past in found["extra_data"]["uploads"]) == 14
