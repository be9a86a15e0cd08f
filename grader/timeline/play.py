"""Runs the calls that a timeline shows (its scenes), and makes pictures of them.

A picture shows the work of each rank over time, the communications, and the errors.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from grader.diagnosis.rank_summaries import rank_list
from grader.diagnosis.root_cause import diagnose
from grader.diagnosis.spans import COMPUTING, Span, on_core, spans
from grader.reports.svg_drawing import LATE, Picture, work
from grader.session import Session
from grader.timeline.cluster import plain, whole_of
from grader.timeline.ideal import ideal, idle_share, is_pass, measured_shares
from grader.timeline.scenes import Scene
from grader.wire import machine_limits
from grader.wire.events import Mark, Operation
from grader.world.fork_server_client import WorldsUnavailable
from grader.world.limits import Limits
from grader.world.report import Call, Raised, Returned, WorldReport
from grader.world.world import World

NO_PASS = (
    "No pass is drawn, because run_schedule recorded none. Put the computing of each pass inside"
    " `with timeline.span(kind, i):`."
)


@dataclass(frozen=True)
class PlayedScene:
    """A scene that was played (its call was run), and its drawing if there is one.

    If the call needs a problem that is not implemented yet, there is no drawing, and ``missing``
    names that problem. If the call failed for another reason, ``diagnosis`` says why. Otherwise
    ``missing`` and ``diagnosis`` are empty.
    """

    scene: Scene
    picture: Picture | None
    missing: str = ""
    diagnosis: str = ""
    disturbed: bool = False  # whether ranks had to wait for a core
    seconds: float | None = None  # that the scene takes on a modelled cluster
    ideal: Picture | None = None  # the same schedule in theory, if the scene is a pipeline


class ScenePlayer:
    """Plays scenes in worlds of the grader. These worlds also record the waits of ranks."""

    def __init__(self, session: Session, ranks: int) -> None:
        self.session, self.ranks = session, ranks

    def world(self, size: int, calls: list[Call], trace: bool = True) -> WorldReport:
        return World(
            self.session.server, size, calls, self.session.submission_dir, Limits(), trace
        ).run()

    def play(self, scene: Scene) -> PlayedScene:
        report = self.world(
            self.ranks, [Call(scene.function, [([], scene.options)] * self.ranks, scene.driver)]
        )
        if report.grader_fault:
            raise WorldsUnavailable(report.grader_fault)
        drawn = spans(report, 0)
        disturbed = _disturbed(drawn, on_core(report, 0))
        # The grader calls a barrier before each run. The diagnosis must not mention these barriers.
        # A rank whose last event is such a barrier has ended its run. Treat it as returned.
        for rank in report.ranks:
            reached = [event for event in rank.trail if isinstance(event, (Operation, Mark))]
            if reached and _is_ours(reached[-1]):
                rank.outcomes.setdefault(0, Returned(None, [], {}))
            rank.trail = [event for event in rank.trail if not (_is_ours(event))]
        picture = picture_of(scene, drawn, _communications(drawn))
        if troubled := failed_scene(scene, picture, report):
            return replace(troubled, disturbed=disturbed)
        if not scene.has_ideal:
            return PlayedScene(scene, picture, disturbed=disturbed)
        in_theory = ideal(drawn)
        picture = replace(picture, title=f"{scene.title}, {self.bubble(scene, drawn, in_theory)}")
        if not any(map(is_pass, drawn)):
            picture = replace(picture, below=(*picture.below, NO_PASS))
        elif in_theory:
            picture = replace(picture, below=(*picture.below, measured_shares(drawn)))
            own = Picture("the same schedule, ideal", in_theory)
            return PlayedScene(scene, picture, disturbed=disturbed, ideal=own)
        return PlayedScene(scene, picture, disturbed=disturbed)

    def play_again_if_disturbed(self, scene: Scene) -> PlayedScene:
        """Play a scene. If other programs disturbed it, play it a second time.

        The disturbance may be over by then. A scene that failed is not played again. Return the
        second result only if it has a drawing and was not disturbed. Otherwise return the first
        result.
        """
        first = self.play(scene)
        if not first.disturbed or first.diagnosis:
            return first
        second = self.play(scene)
        return second if second.picture and not second.disturbed else first

    def bubble(self, scene: Scene, drawn: Sequence[Span], in_theory: Sequence[Span]) -> str:
        """Return a text with the measured bubble and the predicted bubble.

        In part 5, the student's functions of problem 5.6 compute both numbers.
        """
        if scene.driver != "pipeline":
            shares = f"{idle_share(drawn):.2f} measured, {idle_share(in_theory):.2f} in theory"
            return f"bubble {shares}"
        stages = [
            [
                (s.label.partition(" ")[0], s.micro_batch, s.begin, s.end)
                for s in drawn
                if s.rank == rank and is_pass(s)
            ]
            for rank in range(self.ranks)
        ]
        calls = [
            Call("pipeline_parallel.measured_bubble", [([stages], {})], "of_spans", may_raise=True),
            Call(
                "pipeline_parallel.bubble_fraction",
                [([self.ranks, scene.options["micro_batches"]], {})],
                may_raise=True,
            ),
        ]
        (own,) = self.world(1, calls, trace=False).ranks
        measured, theory = own.outcomes.get(0), own.outcomes.get(1)
        if any(isinstance(outcome, Raised) and outcome.stub for outcome in (measured, theory)):
            return "its bubble is shown when you have written problem 5.6"
        fraction = measured.value["fractions"][0] if isinstance(measured, Returned) else None
        predicted = theory.value if isinstance(theory, Returned) else None
        return (
            f"bubble {decimals(fraction, 2)} measured, {decimals(predicted, 2)} in theory"
            + why_unknown("measured_bubble", fraction, measured)
            + why_unknown("bubble_fraction", predicted, theory)
        )


def decimals(value: object, places: int) -> str:
    """Return a number as text, or “?” if ``value`` is no number."""
    return f"{value:.{places}f}" if isinstance(value, (int, float)) else "?"


def why_unknown(function: str, value: object, outcome: Raised | Returned | None) -> str:
    """Return a note in brackets if a student's function gave no number, or "" if it gave one.

    The note says why there is no number. ``outcome`` is None if the function did not end.
    """
    if isinstance(value, (int, float)):
        return ""
    if isinstance(outcome, Raised):
        return f" ({function} raised {outcome.type})"
    return f" ({function} returned no number)" if outcome else f" ({function} did not end)"


def picture_of(scene: Scene, drawn: Sequence[Span], communications: list[str]) -> Picture:
    """Return the picture of a scene that was played."""
    below = [line for line in (scene.look, *communications) if line]
    return Picture(scene.title, drawn, _shares(drawn) if scene.share else (), below)


def failed_scene(scene: Scene, picture: Picture, report: WorldReport) -> PlayedScene | None:
    """Return a scene whose call failed, with the reason. Return None if the call succeeded.

    The result has no drawing if no rank has communicated, or if a problem is not implemented. In
    the second case, ``missing`` names that problem.
    """
    found = diagnose(report, 0)
    if found and not found.implemented:
        return PlayedScene(scene, None, missing=found.headline)
    if found:
        # If no rank has communicated, there is nothing to see.
        communicated = any(span.operation for span in picture.spans)
        counted = replace(picture, below=[line for line in picture.below if line != scene.look])
        return PlayedScene(
            scene,
            counted if communicated else None,
            diagnosis=str(found).replace(f"{report.submission_dir}/", ""),
        )
    return None


def _is_ours(event: object) -> bool:
    """Return whether an event is the grader's barrier before a run.

    ``timeline_programs._drawn`` calls this barrier.
    """
    return isinstance(event, Operation) and event.kind == "barrier" and event.file is None


def _disturbed(drawn: Sequence[Span], on_core: Sequence[float]) -> bool:
    """Return whether a rank ran on a core for much less time than the drawing shows as computing.

    ``on_core`` has, for each rank, the seconds that it ran on a core. Return False if a rank's
    seconds are missing, or if there are more ranks than cores.
    """
    ranks = sorted({span.rank for span in drawn})
    if len(on_core) != len(ranks) or len(ranks) > machine_limits.cores():
        return False
    return any(
        seconds < 0.8 * _computed(drawn, rank) - 0.001 for rank, seconds in zip(ranks, on_core)
    )


def _computed(drawn: Sequence[Span], rank: int) -> float:
    own = [span for span in drawn if span.rank == rank and span.kind == COMPUTING]
    return sum(span.end - span.begin for span in own if span.end is not None and work(span) != LATE)


def _communications(drawn: Sequence[Span]) -> list[str]:
    """Return sentences about the communications that each rank started, and their bytes."""
    started = {o.key: o for span in drawn if (o := span.operation) is not None and not _is_ours(o)}
    return counted(
        started.values(), {span.rank for span in drawn}, lambda operation: operation.bytes
    )


def counted(
    started: Iterable[Operation], ranks: Iterable[int], size: Callable[[Operation], float]
) -> list[str]:
    """Return sentences about the operations that each rank started, and their bytes.

    ``size`` returns the bytes of an operation's tensor on its rank. The sentences give S, the bytes
    of the whole array: see ``whole_of``. Operations of a process group with one rank are left out,
    because they communicate nothing.
    """
    own: dict[int, list[Operation]] = {rank: [] for rank in sorted(ranks)}
    for operation in started:
        if len(operation.group) > 1:
            own[operation.rank].append(operation)
    said: dict[str, list[int]] = {}
    for rank, operations in own.items():
        many: Counter[str] = Counter()
        sizes: dict[str, float] = defaultdict(float)
        for operation in operations:
            many[operation.name] += 1
            own_size, n = size(operation), len(operation.group)
            sizes[operation.name] += whole_of(operation.kind, [own_size], n)
        parts = [
            f"{many[name]} × {name}" + f" ({_bytes(sizes[name])})" * (sizes[name] > 0)
            for name in sorted(many)
        ]
        said.setdefault(", ".join(parts) or "none", []).append(rank)
    if len(said) == 1:
        return [f"Communications of each rank: {next(iter(said))}."]
    parts = [f"of {_named(ranks)}: {text}" for text, ranks in said.items()]
    return [f"Communications {'; '.join(parts)}."] if said else []


def _bytes(size: float) -> str:
    return f"{plain(size / (1 << 20))} MiB" if size < 1 << 30 else f"{plain(size / (1 << 30))} GiB"


def _named(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return rank_list(ranks)


def _shares(drawn: Sequence[Span]) -> list[str]:
    """Return for each rank a text like “computes 40 %”: the share of the time in which it computes.

    Return [] if a span has not ended.
    """
    ends = [span.end for span in drawn if span.end is not None]
    if len(ends) < len(drawn):
        return []
    whole = max(ends, default=0.0) or 1.0
    ranks = sorted({span.rank for span in drawn})
    return [f"computes {100 * _computed(drawn, rank) / whole:.0f} %" for rank in ranks]
