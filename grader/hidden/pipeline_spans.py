"""Holds stages of a pipeline at chosen moments, and judges the spans that all stages record."""

from grader.check.api import PRODUCT, SEND, STANDSTILL, Delay
from grader.reference import schedules


def moments_to_hold(n, m):
    """Return pairs (rank, k): the rank is held before its k-th send.

    While the rank is held, other stages wait for an activation (after a forward or a backward pass)
    or for a gradient. The last stage may also wait until its first send has ended.
    """
    middle = [(1, 2)] if n > 2 else []
    return [(0, 2), (0, m), *middle, (n - 1, 1), (n - 1, m)]


def held(rank, send):
    """Return options of a call that hold the rank before this send until all other ranks wait."""
    delay = Delay(STANDSTILL, on=0 if rank else 1, at=f"send {send}")
    return {"delays": {rank: delay}, "marks_sends": True}


def require_no_wait_in_spans(run, rank, send):
    """Fail if another rank waited inside a span while this rank was held before this send.

    The rank was held until all other ranks waited. So when the held rank goes on, no other rank
    computes, however busy the machine is.
    """
    run.values()
    moment = run.passed(rank, f"send {send}") / 1e9
    for other in range(run.report.size):
        for span in run.spans(other) if other != rank else ():
            text = (
                f"stage {other} waited inside its span of {span.action} until stage {rank} started"
                f" send {send} (counted from 1). Leave the span before you receive or wait."
            )
            run.require(not span.start < moment < span.end, text)


def late_ends(n):
    """Return delays of the first and the last stage.

    First the second stage waits for an activation. Then the stages before the last one wait for a
    gradient. If a stage counts this waiting as work, its spans begin before the message is sent,
    even if the machine is busy.
    """
    # If there are two stages, the first stage begins only after the last stage. So the last stage
    # is held only before its send.
    at = {"at": "send 1"} if n == 2 else {}
    return {
        0: Delay(until="call began", on=1, then=0.1),
        n - 1: Delay(until="call began", on=0, then=0.1, **at),
    }


def require_sent_before_next(run, stage, n):
    """Fail if a stage computes in a span before it has started all sends of its earlier spans.

    The meter records products and sends in program order. So the verdict does not depend on how
    busy the machine is. All products must lie inside spans: see ``require_own_timeline``.
    """
    ledger, spans, due = run.ledger(stage), run.spans(stage), 0
    for span, following in zip(spans, spans[1:]):
        sends_on = stage < n - 1 if span.kind == "forward" else stage > 0
        if sends_on:
            due += 1
        begun = (
            place
            for place, entry in enumerate(ledger)
            if entry.kind == PRODUCT and entry.at >= following.start
        )
        sent = sum(entry.kind == SEND for entry in ledger[: next(begun, len(ledger))])
        text = (
            f"stage {stage} computed {following.action} before it had started to send the result of"
            f" {span.action} or of an earlier action. When an action ends, start its send, before"
            " the next action computes."
        )
        run.require(sent >= due, text)


def require_own_timeline(run, p, made):
    """Fail unless the spans are the schedules' actions, and begin after their inputs were sent.

    All products, and the loss, must be computed inside spans. Each span must have products. A stage
    must start to send the result of an action before it computes the next action.
    """
    n, m = p.n, p.m
    p.require_products(run, range(n), 2)
    spans = [run.spans(stage) for stage in range(n)]
    for stage in range(n):
        recorded = [span.action for span in spans[stage]]
        text = (
            f"stage {stage} recorded {str(recorded):.2000}; its schedule is {made[stage]}. Record"
            " each action once, in the order of the schedule."
        )
        run.require(recorded == made[stage], text)
        products = [entry.at for entry in run.ledger(stage) if entry.kind == PRODUCT]
        outside = [
            at for at in products if not any(span.start <= at <= span.end for span in spans[stage])
        ]
        text = (
            f"stage {stage}: {len(outside)} of {len(products)} products were computed outside of"
            " all spans. Record these products, too: they are work."
        )
        run.require(not outside, text)
        for kind in ("forward", "backward"):
            own = [span for span in spans[stage] if span.kind == kind]
            worked = {
                span.micro_batch: any(span.start <= at <= span.end for at in products)
                for span in own
            }
            idle = [i for i, did in worked.items() if not did]
            text = (
                f"stage {stage} computed no matrix product during its span of {kind}"
                f" {min(idle, default=0)}. Compute the layers of an action inside its span."
            )
            run.require(not idle, text)
        require_sent_before_next(run, stage, n)
    schedules.require_loss_in_spans(run, n - 1, p.rows * p.width, m)
    for stage in range(n - 1):
        for kind, giver, taker in (("forward", stage, stage + 1), ("backward", stage + 1, stage)):
            sent = [
                o.at / 1e9 for o in run.operations(giver) if o.kind == "send" and o.peer == taker
            ]
            begun = [span for span in spans[taker] if span.kind == kind]
            for span, message in zip(begun, sent):
                text = (
                    f"stage {taker}'s span of {span.action} begins before stage {giver} has sent"
                    " the input of this span."
                )
                run.require(
                    message <= span.start,
                    f"{text} Waiting for a message is not work, so wait before the span.",
                )
