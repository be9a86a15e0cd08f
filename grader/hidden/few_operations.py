"""Counts the operations of a rank. Each operation takes a latency, however few bytes it sends."""


def require_few_operations(run, collectives, sentence):
    """Fail if a rank issues too many operations for this number of ``collectives``."""
    n = run.report.size
    for rank in range(n):
        require_few(run, rank, run.operations(rank), n, collectives, sentence)


def require_few(run, rank, operations, n, collectives, sentence, where=""):
    """Fail if a rank's ``operations`` in a group of n ranks are too many for ``collectives``.

    A rank may carry out a collective with sends and receives: an all-reduce round a ring takes
    2(n−1) of each. So 4n operations are allowed for each collective. ``where`` names the group in
    the message.
    """
    done, most = len(operations), 4 * n * collectives
    run.require(
        done <= most,
        f"rank {rank} starts {done} operations{where}. At most {most} are allowed. {sentence} Does"
        " a loop over rows communicate? Then send all rows together. Each operation takes a"
        " latency α, however few bytes it sends (Part 2).",
    )
