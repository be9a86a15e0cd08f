"""Lists the messages between the judge and the supervisor of a world.

A message is a line with a JSON object. A message of the judge names its kind: the value of
``asks``. A message of the supervisor, or of the hub in it, has exactly one key of ``KINDS``. This
key is the kind of the message. There is one exception: to end the world, the judge sends the line
``end``, which is no JSON object.
"""

# Judge → supervisor
# Asks how many moves there were until now: see ``Hub.moves``.
MOVES_ASKED = {"asks": "moves"}
# Says that the ranks are idle. Asks how many results of slow all-gathers, and how many withheld
# messages, the hub gives them now: see ``hub.Hub.give_to_idle``.
RESULTS_ASKED = {"asks": "results"}
# Asks whether the ranks may go on with the calls of another check. The message also has the key
# ``request``, whose value is the request for this check.
NEXT_CHECK = "next check"

# Supervisor → judge. Each comment describes the value of the key. If a message has other keys, too,
# the comment names them.
PIDS = "pids"  # the pid of each rank that was started
EXITED = "status"  # the exit code, or −signal, of ``rank``
LIMIT = "limit"  # in words, how the ranks exceed a limit
FAULT = "fault"  # in words, why the supervisor failed
GONE = "gone"  # nothing of the world is left
# the answer to NEXT_CHECK; with the pids as ``started`` if the ranks came to rest in time
READY = "ready"
MOVES = "moves"  # the answer to MOVES_ASKED, with what ``Matching.report`` returns
GIVEN = "given"  # the answer to RESULTS_ASKED
# Hub → judge
STANDSTILL = "standstill"  # the held ranks; also ``frames``, and what ``Matching.report`` returns
# in words, why the frames of ``rank`` are not accepted; if the message also has ``not_allowed``,
# these words name what the rank sent (see ``frames.NotAllowed``)
REFUSED = "refused"
GROWN = "grown"  # rank, call, and the fields of a ``Growth``
SPENT = "spent"  # rank, call, nanoseconds of processor time
# as SPENT, when a rank at rest gets a message that it waits for: see ``hub.awaited_receives``
SPENT_BEFORE_WAIT = "spent_before_wait"
SQUARES = "squares"  # rank, call, sum of squares, sum of fourth powers
SENT_ON_LATE = "not_sent_on"  # rank, call, number of the message, time
AWAITED_AT_ONCE = "awaited_early"  # rank, call, number of the all-gather, time

KINDS = (
    PIDS,
    EXITED,
    LIMIT,
    FAULT,
    GONE,
    READY,
    MOVES,
    GIVEN,
    STANDSTILL,
    REFUSED,
    GROWN,
    SPENT,
    SPENT_BEFORE_WAIT,
    SQUARES,
    SENT_ON_LATE,
    AWAITED_AT_ONCE,
)


def kind_of(message: dict) -> str:
    """Return the kind of a message of the supervisor.

    Raises ValueError if the message does not have exactly one kind.
    """
    (kind,) = [kind for kind in KINDS if kind in message]
    return kind
