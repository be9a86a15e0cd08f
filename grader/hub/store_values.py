"""The values behind the ranks' store. Runs in the hub.

Ranks meet here, and do not talk: they may only count and say that they are there, as torch does
when it makes a group. That holds from the beginning: in ranks that were used before, a student's
code may run between two checks. And a word can be spelled in counts and keys, so there are few of
them for each call.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from grader.wire import frames

MAX_KEYS = 64  # in one question: ranks wait for one of each
MAX_QUESTIONS = 60  # of a rank in one call: a group takes two
MAX_LETTERS = 500  # of a key


@dataclass
class Keys:
    """Answers questions, some of them later: ``get`` and ``wait`` are answered when their keys are
    there.
    """

    values: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[int, int, dict]] = field(default_factory=list)
    asked: Counter = field(default_factory=Counter)  # (rank, call) → questions

    def ask(self, rank: int, call: int, meta: dict) -> Iterator[tuple[int, int, dict]]:
        """Yield (rank, number of the question, answer) for all that can be answered now.

        Raises FrameError.
        """
        self._check_small(rank, call, meta)
        number, do, keys = (meta.get(name) for name in ("number", "do", "keys"))
        if not frames.is_whole(number) or not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise frames.FrameError("a question to the store of no known form")
        if not all(frames.is_text(key, MAX_LETTERS) for key in keys):
            raise frames.FrameError("a question to the store of no known form")
        if do in ("set", "add", "get") and len(keys) != 1:
            raise frames.FrameError("a question to the store about other than one key")
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
        """Raise FrameError where a question is none that torch has when it makes a group."""
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
            raise frames.FrameError(
                "a value for torch's store: ranks communicate through torch.distributed's"
                " operations"
            )
        if self.asked[rank, call] > MAX_QUESTIONS:
            raise frames.FrameError(
                f"more than {MAX_QUESTIONS // 2} process groups made in one call: make each once"
            )

    def _do(self, do: object, keys: list[str], meta: dict) -> dict:
        if do == "set":
            self.values[keys[0]] = meta["value"]
        elif do == "add":
            self.values[keys[0]] = str(int(self.values.get(keys[0]) or 0) + meta["amount"])
        else:  # "check"
            return {"found": all(key in self.values for key in keys)}
        return {"value": self.values[keys[0]]}
