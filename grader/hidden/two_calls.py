"""Checks that a second call does not change the result of the first call.

A function that returns memory which it uses again in the next call passes every check that makes
one call, or two calls with the same arguments.
"""

from grader.check.api import call, per_rank
from grader.reference.collective_mistakes import OVERWRITTEN


def in_turn(size, first, second, driver="in_turn"):
    """Return a call that makes two calls of one function, and sends both results at the end.

    Both calls have the same arguments by name.
    """
    turns = [
        per_rank(*(args for args, _ in request.spread(size).arguments))
        for request in (first, second)
    ]
    return call(first.function, *turns, driver=driver, **first.kwargs)


def returns_both(run, first, second, what, select=lambda result: result, **options):
    """Fail unless each rank has both results at the end of a call of ``in_turn``.

    ``first`` and ``second`` have the expected result of each rank. ``select`` picks the part of a
    result that is compared, and ``what`` names it.
    """
    run.returns(
        *([own, later] for own, later in zip(first, second)),
        select=lambda results: [select(result) for result in results],
        label=f"the list of {what} of two calls, read after both calls,",
        known_mistakes=[{OVERWRITTEN: [later, later]} for later in second],
        **options,
    )
