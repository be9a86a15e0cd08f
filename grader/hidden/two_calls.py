"""Checks that a second call does not change the result of the first call.

A function may return memory that its next call overwrites. Such a function passes every check that
makes only one call, or two calls with the same arguments.
"""

from grader.check.api import call, per_rank
from grader.reference.collective_mistakes import OVERWRITTEN, STALE

KEPT_A_PART = (
    "the second call had the tensors of the first call, with new values, as after a step of an"
    " optimizer. Does the function keep something that it has computed from earlier values?"
)


def in_turn(size, first, second, driver="in_turn"):
    """Return a request that calls one function twice, and sends back both results at the end.

    ``first`` and ``second`` are requests for the two calls. The keyword arguments of ``first`` are
    used in both calls. With the driver ``refilled``, the second call gets the very tensors of the
    first call. In between, their values are replaced in place.
    """
    turns = [
        per_rank(*(args for args, _ in request.spread(size).arguments))
        for request in (first, second)
    ]
    return call(first.function, *turns, driver=driver, **first.kwargs)


def returns_both(run, first, second, what="results", select=lambda result: result, **options):
    """Fail unless each rank returned both right results in a run of a request of ``in_turn``.

    ``first`` lists each rank's expected result of the first call. ``second`` lists each rank's
    expected result of the second call. ``select`` picks the part of a result that is compared, and
    ``what`` names this part.
    """
    run.returns(
        *([own, later] for own, later in zip(first, second)),
        select=lambda results: [select(result) for result in results],
        label=f"the list of {what} of two calls, read after both calls,",
        known_mistakes=[
            {OVERWRITTEN: [later, later], STALE: [own, own]} for own, later in zip(first, second)
        ],
        **options,
    )
