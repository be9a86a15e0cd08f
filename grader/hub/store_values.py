"""The hub keeps the values of the store that the ranks of a world share.

Ranks find each other through this store, but must not communicate through it. In the store, a rank
is allowed only to count and to report its presence, as torch does when it makes a process group.
The hub applies this rule from the beginning of a check: in ranks that are used again, student code
of an earlier check may still run. A rank could also hide a message in counts and keys. So in each
call a rank is allowed to ask only a few questions.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from grader.wire import frames, tiers

MAX_KEYS = tiers.MAX_RANKS  # keys in one question: a rank waits for one key of each rank
MAX_QUESTIONS = 60  # questions of a rank in one call; making a group takes two
MAX_KEY_LETTERS = 500  # characters in a key


@dataclass
class StoreValues:
    """Stores a value for each key, and answers the ranks' questions to the store (get, wait, …).

    ``get`` and ``wait`` are answered as soon as all their keys have a value.
    """

    values: dict[str, str] = field(default_factory=dict)
    # (rank, number, question) of each question that is not answered yet
    waiting: list[tuple[int, int, dict]] = field(default_factory=list)
    asked: Counter = field(default_factory=Counter)  # (rank, call) → number of questions

    def ask(self, rank: int, call: int, meta: dict) -> Iterator[tuple[int, int, dict]]:
        """Take a question; yield (rank, number, answer) for each question that can be answered now.

        ``number`` is the number of the answered question. The new question may set a value for
        which earlier questions wait. Then the earlier questions are answered, too. Raises
        NotAllowed if the new question is not of the agreed form, or is not allowed.
        """
        self._check_small(rank, call, meta)
        number, do, keys = (meta.get(name) for name in ("number", "do", "keys"))
        if not frames.is_whole(number) or not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise frames.NotAllowed("a request of an unknown form to torch's store")
        if not all(frames.is_text(key, MAX_KEY_LETTERS) for key in keys):
            raise frames.NotAllowed("a request of an unknown form to torch's store")
        if do in ("set", "add", "get") and len(keys) != 1:
            raise frames.NotAllowed("a request to torch's store that does not name exactly one key")
        if do in ("get", "wait"):
            self.waiting.append((rank, number, meta))
        else:
            yield rank, number, self._do(do, keys, meta)
        still = []
        for question in self.waiting:
            asked = question[2]["keys"]
            if all(key in self.values for key in asked):
                yield *question[:2], {"value": self.values[asked[0]]} if asked else {}
            else:
                still.append(question)
        self.waiting = still

    def _check_small(self, rank: int, call: int, meta: dict) -> None:
        """Raise NotAllowed if torch never asks such a question when it makes a group.

        Also raise NotAllowed if the rank has asked too many questions in this call.
        """
        self.asked[rank, call] += 1
        do, value, amount = (meta.get(name) for name in ("do", "value", "amount"))
        counts = (
            do == "set"
            and value in ("", "1")
            or do == "add"
            and frames.is_whole(amount)
            and amount in (0, 1)
        )
        if not counts and do not in ("get", "wait", "check"):
            raise frames.NotAllowed(
                "a value through torch's store. Ranks must communicate only through operations of"
                " torch.distributed"
            )
        if self.asked[rank, call] > MAX_QUESTIONS:
            raise frames.NotAllowed(
                f"more than {MAX_QUESTIONS} requests to torch's store in one call. This number is"
                f" enough to make {MAX_QUESTIONS // 2} process groups. Make each group only once"
            )

    def _do(self, do: object, keys: list[str], meta: dict) -> dict:
        if do == "set":
            self.values[keys[0]] = meta["value"]
        elif do == "add":
            self.values[keys[0]] = str(int(self.values.get(keys[0]) or 0) + meta["amount"])
        else:  # "check"
            return {"found": all(key in self.values for key in keys)}
        return {"value": self.values[keys[0]]}
