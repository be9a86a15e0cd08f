"""Counts the operations of a rank. Each operation takes a latency, however few bytes it sends."""


def require_few_operations(run, collectives, sentence):
    """Fail if a rank issues too many operations for this number of ``collectives``.

    A rank may carry out a collective with sends and receives: an all-reduce round a ring takes
    2(n−1) of each. So 4n operations are allowed for each collective.
    """
    n = run.report.size
    for rank in range(n):
        done, most = len(run.operations(rank)), 4 * n * collectives
        run.require(
            done <= most,
            f"rank {rank} starts {done} operations. At most {most} are allowed. {sentence} Does"
            " a loop over rows communicate? Then send all rows together. Each operation takes a"
            " latency α, however few bytes it sends (Part 2).",
        )
