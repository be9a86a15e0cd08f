"""The values behind the ranks' store. Runs in the hub.

Ranks meet here, and do not talk: once a rank has begun its first call, it may only count and say that it is there, as torch does
when it makes a group.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from grader.worlds import frames

MOST_KEYS = 16  # in one question
MOST_QUESTIONS = 500  # of a rank that has begun: a group takes five
MOST_LETTERS = 500  # of a key
MOST_BYTES = 1 << 10  # of a value
MOST_ALL = 1 << 16  # bytes, of all keys and values


@dataclass
class Keys:
    """Answers questions, some of them later: ``get`` and ``wait`` are answered when their keys are there."""

    values: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[int, int, dict]] = field(default_factory=list)
    asked: Counter = field(default_factory=Counter)  # questions, by ranks that have begun

    def ask(self, rank: int, meta: dict, has_begun: bool) -> Iterator[tuple[int, int, dict]]:
        """Yield (rank, number of the question, answer) for all that can be answered now. Raises FrameError."""
        if has_begun:
            self._check_small(rank, meta)
        number, do, keys, value = (meta.get(name) for name in ("number", "do", "keys", "value"))
        proper = frames.is_whole(number) and isinstance(keys, list) and len(keys) <= MOST_KEYS
        if not proper or not all(frames.is_text(key, MOST_LETTERS) for key in keys):
            raise frames.FrameError("a question to the store of no known form")
        if do in ("set", "add", "compare_set", "delete", "get") and len(keys) != 1:
            raise frames.FrameError("a question to the store about other than one key")
        if do in ("set", "compare_set") and not frames.is_text(value, MOST_BYTES):
            raise frames.FrameError(f"more than {MOST_BYTES} bytes for the store")
        if do in ("get", "wait"):
            self.waiting.append((rank, number, meta))
        else:
            yield rank, number, self._do(do, keys, meta)
        if sum(map(len, self.values)) + sum(map(len, self.values.values())) > MOST_ALL:
            raise frames.FrameError(f"more than {MOST_ALL >> 10} KiB in the store")
        still = []
        for question in self.waiting:
            asked = question[2]["keys"]
            if all(key in self.values for key in asked):
                yield *question[:2], {"value": self.values[asked[0]]} if asked else {}
            else:
                still.append(question)
        self.waiting = still

    def _check_small(self, rank: int, meta: dict) -> None:
        """Raise FrameError where a question is none that torch has when it makes a group."""
        self.asked[rank] += 1
        do, value, amount = (meta.get(name) for name in ("do", "value", "amount"))
        counts = do == "set" and value in ("", "1") or do == "add" and amount in (0, 1)
        if not counts and do not in ("get", "wait", "check"):
            raise frames.FrameError(
                "a value for torch's store: ranks communicate through torch.distributed's operations"
            )
        if self.asked[rank] > MOST_QUESTIONS:
            raise frames.FrameError(f"more than {MOST_QUESTIONS} questions to torch's store")

    def _do(self, do: object, keys: list[str], meta: dict) -> dict:
        if do == "set":
            self.values[keys[0]] = meta["value"]
        elif do == "add":
            amount, before = meta.get("amount"), self.values.get(keys[0], "0")
            if not frames.is_whole(amount) or not before.lstrip("-").isdecimal() or len(before) > 20:
                raise frames.FrameError("an addition in the store to what is no number")
            self.values[keys[0]] = str(int(before) + amount)
        elif do == "compare_set":
            if self.values.get(keys[0], "") == meta.get("expected"):
                self.values[keys[0]] = meta["value"]
        elif do == "check":
            return {"found": all(key in self.values for key in keys)}
        elif do == "delete":
            return {"found": self.values.pop(keys[0], None) is not None}
        elif do == "count":
            return {"found": len(self.values)}
        else:
            raise frames.FrameError("a question to the store of no known kind")
        return {"value": self.values.get(keys[0], "")}
