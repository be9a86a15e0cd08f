"""Plays the scenes of a timeline (the calls that it shows) on a modelled cluster.

The student's program runs on this machine. The times in the drawing are those of the modelled
cluster.
"""

import contextlib
import sys
from dataclasses import replace
from functools import partial

from grader.reports.svg_drawing import MAX_SPANS_IN_FULL
from grader.session import Session
from grader.timeline.cluster import Cluster, plain
from grader.timeline.ideal import is_pass
from grader.timeline.play import (
    NO_PASS,
    PlayedScene,
    counted,
    decimals,
    failed_scene,
    picture_of,
    why_unknown,
)
from grader.timeline.replay import Replay, program_of, size_on
from grader.timeline.scenes import Scene
from grader.timeline.virtual_time import Account, account, milliseconds, spans_of
from grader.wire import frames, machine_limits
from grader.wire.events import Program
from grader.world.fork_server_client import WorldsUnavailable
from grader.world.limits import Limits
from grader.world.report import Call, Raised, Returned, WorldReport
from grader.world.world import World

# With more ranks than this, the drawing leaves out messages that run while a program does other
# work.
FEW = 4
FILES = 1024  # open files that this process and a supervisor may need
LIMITS = Limits(
    cpu_seconds=10.0, wall_seconds=120.0, world_seconds=240.0, events=5_000_000, sent_bytes=1 << 27
)


class Model:
    """Plays scenes with one rank for each device of a cluster."""

    def __init__(self, session: Session, cluster: Cluster) -> None:
        self.session, self.cluster = session, cluster

    def world(self, size: int, calls: list[Call]) -> WorldReport:
        limits = replace(
            LIMITS,
            memory_bytes=max(
                machine_limits.memory() - machine_limits.ENGINE_BYTES, machine_limits.LEAST_BYTES
            ),
        )
        server, folder = self.session.server, self.session.submission_dir
        report = World(server, size, calls, folder, limits, trace=True, network=frames.HUB).run()
        if report.grader_fault:
            raise WorldsUnavailable(report.grader_fault)
        return report

    def play(self, scene: Scene) -> PlayedScene:
        n = self.cluster.ranks
        report = self.world(n, [Call(scene.function, [([], scene.options)] * n, scene.driver)])
        replay = Replay(self.cluster, [program_of(trail, 0) for trail in report.trails]).run()
        for rank in report.ranks:  # the code below expects only operations and marks
            rank.trail = [event for event in rank.trail if not isinstance(event, Program)]
        absent = {(w.operation.rank, w.operation.at): tuple(w.absent) for w in report.waiting()}
        drawn = spans_of(replay, absent, messages=n <= FEW)
        started = [
            program.operations[number]
            for rank, program in enumerate(replay.programs)
            for number in replay.ranks[rank].issued
        ]
        communications = counted(started, range(n), partial(size_on, self.cluster))
        picture = replace(
            picture_of(scene, drawn, communications),
            compact=len(drawn) > MAX_SPANS_IN_FULL,
            lacks_messages=n > FEW,
        )
        if troubled := failed_scene(scene, picture, report):
            return troubled
        if replay.stands_still:
            sentence = (
                f"{scene.title}: the replay did not finish. The replay cannot follow operations"
                " that another thread starts. If a receive accepts messages from any rank, the"
                " replay cannot know which message was received."
            )
            return PlayedScene(scene, None, diagnosis=sentence)
        spent = account(replay)
        title, below = self._title(scene, spent), [self._sizes(scene), str(spent)]
        if scene.driver == "pipeline" and not any(map(is_pass, drawn)):
            below.append(NO_PASS)
        picture = replace(picture, title=title, below=(*below, *picture.below))
        return PlayedScene(scene, picture, seconds=spent.whole)

    def _title(self, scene: Scene, spent: Account) -> str:
        title = f"{scene.title}: {milliseconds(spent.whole)}"
        if scene.driver != "pipeline":
            return title
        return (
            f"{title}, bubble {spent.bubble:.3f} in the model,"
            f" {self._theory(scene.options['micro_batches'])}"
        )

    def _theory(self, micro_batches: int) -> str:
        """Return the bubble that the student's function of problem 5.6 predicts, in words."""
        call = Call(
            "pipeline_parallel.bubble_fraction",
            [([self.cluster.ranks, micro_batches], {})],
            may_raise=True,
        )
        outcome = self.world(1, [call]).ranks[0].outcomes.get(0)
        if isinstance(outcome, Raised) and outcome.stub:
            return "the theory appears when you have written problem 5.6"
        value = outcome.value if isinstance(outcome, Returned) else None
        return f"{decimals(value, 3)} in theory{why_unknown('bubble_fraction', value, outcome)}"

    def _sizes(self, scene: Scene) -> str:
        """Return a sentence about the sizes that the tensors have on the modelled cluster."""
        options, scale = scene.options, self.cluster.scale
        if "elements" in options:
            return f"A tensor of {plain(options['elements'] * scale**2)} numbers."
        rows, width = (plain(options[name] * scale) for name in ("rows", "width"))
        own = {
            "pipeline": " on each stage",
            "passes": " on each stage",
            "data_parallel": " on each rank",
            "buckets": " on each rank",
        }
        batch = f"a batch of {rows} rows"
        if many := options.get("micro_batches"):
            each = plain(options["rows"] * scale / many)
            batch += f" in {many} micro-batch{'es' * (many > 1)} of {each}"
        elif scene.driver in ("data_parallel", "buckets"):
            batch = f"{rows} rows of the batch"
        return (
            f"{options['layers']} layers of {width} × {width}{own.get(scene.driver, '')}, {batch}."
        )


def steps_of(played: list[PlayedScene]) -> list[str]:
    """Return a sentence that compares the times of all scenes with the time of the first scene.

    Return [] if fewer than two scenes have a time.
    """
    timed = [(one.scene.title, one.seconds) for one in played if one.seconds]
    if len(timed) < 2:
        return []
    (title, first), *others = timed
    told = [f"{title}: {milliseconds(first)}"]
    told += [f"{title}: {milliseconds(s)} ({s / first:.2f} × the first)" for title, s in others]
    return [f"Times of a step: {'; '.join(told)}."]


def have_files() -> None:
    """Raise the limit on open files for this process and for the processes that it starts.

    The pipes and sockets of all ranks need up to ``FILES`` open files. If the limit is already high
    enough, or if the system refuses a higher limit, the limit does not change.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
