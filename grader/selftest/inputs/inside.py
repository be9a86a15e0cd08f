# ——— Appended to a solution, after TABLE, ACT and CHOSEN. The functions of the solution then print
# which inputs they get, or are wrong for some of them.

import functools as _functools
import inspect as _inspect
from collections.abc import Iterator as _Iterator

import torch as _torch
import torch.distributed as _dist


def _layout(tensor):
    """Return how a tensor lies in memory: contiguous, transpose, slice, or expanded."""
    if tensor.is_contiguous():
        return "contiguous"
    if 0 in tensor.stride():
        return "expanded"
    return "transpose" if tensor.T.is_contiguous() else "slice"


def _holds(condition, scope):
    try:
        return eval(condition, dict(scope))
    except Exception:  # an argument has another type than the condition expects
        return False


def _wrong(value):
    """Return something else of the same kind."""
    if isinstance(value, _torch.Tensor):
        return value + 1 if value.numel() else value.new_ones(1)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, float):
        return 2 * value + 1  # adding 1 alone may stay within a tolerance
    if isinstance(value, int):
        return value + 1
    if isinstance(value, range):
        return range(value.start, value.stop + 1)
    if isinstance(value, (list, tuple)):
        items = [*value[:-1], _wrong(value[-1])] if value else [1]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, _Iterator):
        return (_wrong(item) for item in value)
    if isinstance(value, _torch.optim.Optimizer):
        for state in value.state.values():
            state["exp_avg"].add_(1)
        return value
    return f"not {value}"


def _spoil(outcome, result, scope):
    """Make one outcome of a call wrong, and return the result of the call."""
    if outcome == "result":
        return _wrong(result)
    if outcome.startswith("result "):
        index = int(outcome.removeprefix("result "))
        return tuple(_wrong(item) if i == index else item for i, item in enumerate(result))
    with _torch.no_grad():
        if outcome in scope:
            for tensor in (
                scope[outcome] if isinstance(scope[outcome], (list, tuple)) else [scope[outcome]]
            ):
                tensor.add_(1)
        else:
            exec(outcome, {**scope, "result": result})
    return result


def _around(name, function, classes):
    signature, counted, told = _inspect.signature(function), [0], set()

    @_functools.wraps(function)
    def call(*args, **kwargs):
        counted[0] += 1
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the arguments do not fit, so let the function itself raise
            return function(*args, **kwargs)
        bound.apply_defaults()
        given, once = bound.arguments, set()
        for key, value in given.items():
            # Conditions look at an iterator as a list. Then the function gets an iterator again.
            if isinstance(value, _Iterator):
                given[key], _ = list(value), once.add(key)
        scope = {
            **given,
            "once": once,
            "calls": counted[0],
            "torch": _torch,
            "layout": _layout,
            "args": bound.args,
        }
        scope |= {"n": _dist.get_world_size(), "rank": _dist.get_rank()}
        # Conditions of a method may use the arguments that its object was made with.
        if "self" in given:
            made = given["self"].__dict__.setdefault(
                "_made", {key: scope[key] for key in given if key != "self"}
            )
            times = given["self"].__dict__.setdefault("_times", {})
            times[name] = times.get(name, 0) + 1
            scope = {**made, **scope, "times": times[name]}
        met = [row for row in classes if _holds(row["condition"], scope)]
        for key in once:
            given[key] = iter(given[key])
        raised = []

        def run():
            try:
                return function(*bound.args, **bound.kwargs)
            except BaseException as error:
                raised.append(error)
                raise

        try:
            return ACT(name, run, met, scope, told)
        except Exception as error:
            if error in raised:
                raise
            # The mutation test looks for these words: see trials.py there.
            raise RuntimeError(f"the change itself raised {type(error).__name__}") from error

    return call


def _tell(name, function, met, scope, told):
    for row in met:
        if row["across"]:
            print(
                f"ACROSS\t{name}\t{row['index']}\t{scope['calls']}\t{_holds(row['condition'], scope)}",
                flush=True,
            )
        elif row["index"] not in told:
            print(f"INPUT\t{name}\t{row['index']}", flush=True)
            told.add(row["index"])
    return function()


def _be_wrong(name, function, met, scope, told):
    # CHOSEN is a function's name, the index of a class in its row of TABLE, and an outcome.
    if (name, *(row["index"] for row in met if row["index"] == CHOSEN[1])) != CHOSEN[:2]:
        return function()
    if TABLE[name][CHOSEN[1]]["misuse"]:
        try:
            return function()
        except ValueError:
            return None
    return _spoil(CHOSEN[2], function(), scope)


# ACT was a key of this dictionary. From here on it is the function.
ACT = {"tell": _tell, "be wrong": _be_wrong}[ACT]
for _name, _classes in TABLE.items():
    _owner, _, _method = _name.partition(".")
    if not _method:
        globals()[_owner] = _around(_name, globals()[_owner], _classes)
    else:
        _plain = vars(globals()[_owner])[_method]
        _static = isinstance(_plain, staticmethod)
        _call = _around(_name, _plain.__func__ if _static else _plain, _classes)
        setattr(globals()[_owner], _method, staticmethod(_call) if _static else _call)
