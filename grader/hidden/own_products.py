"""Judges how much a rank multiplies, where it has to compute with its own rows or shards only."""

TWICE = 2.2  # the limit, as a multiple of the needed products: each may be computed twice


def require_own_products(run, rank, needed, sentence):
    """Fail if a rank computes more than about twice as many products as it needs.

    ``needed`` is the number of floating-point operations of the products that the rank needs. With
    two ranks, a rank that computes the products of both ranks stays within the limit. So call this
    function with more ranks, too. The meter sees only torch's products.
    """
    done = sum(entry.amount for entry in run.require_products(rank, 0))
    run.require(
        done <= TWICE * needed,
        f"rank {rank} computed products of matrices with {done} floating-point operations."
        f" {sentence} Compute each product only once.",
    )
