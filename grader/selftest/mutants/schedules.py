"""Part 8 · Better schedules: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

LAYERS = {"public chunk_layers", "hidden chunk_layers"}
INTERLEAVED = {
    "public interleaved",
    "hidden interleaved",
    "hidden interleaved_bubble_of_the_schedule",
    "hidden interleaved_alive",
}
LATE = {"public interleaved", "hidden interleaved_bubble_of_the_schedule"}
MUCH = {"public interleaved", "hidden interleaved_alive"}
BUBBLE = {"public interleaved_bubble", "hidden interleaved_bubble"}
RUNS = {
    "public run_zero_bubble",
    "hidden run_halves",
    "hidden run_halves_on_gloo",
    "hidden run_zero_bubble",
    "hidden run_zero_bubble_on_gloo",
    "hidden zero_bubble_memory",
    "hidden input_frees_z",  # it compares the gradients of its run
}
HALVES = {"public halves", "hidden halves"} | RUNS
ZERO_BUBBLE = {
    "public zero_bubble",
    "public run_zero_bubble",
    "hidden zero_bubble",
    "hidden zero_bubble_alive",
    "hidden zero_bubble_idle_time",
    "hidden run_zero_bubble",
    "hidden run_zero_bubble_on_gloo",
    "hidden zero_bubble_memory",
}
FEW = {  # of the checks that ask for fewer micro-batches than stages
    "public zero_bubble",
    "hidden zero_bubble",
    "hidden zero_bubble_alive",
    "hidden zero_bubble_idle_time",
    "hidden run_zero_bubble",
}
IDLE = {"public zero_bubble", "hidden zero_bubble_idle_time"}
ALIVE = {"public zero_bubble", "hidden zero_bubble_alive"}
# The lines of the solution that several mutants change.
CUT = "    return [range(part * each, (part + 1) * each) for part in range(stage, parts, num_stages)]\n"
NO_CUT = "    if num_layers < 1 or num_layers % parts:\n"
VISITS = "    visits = [(c, g + i) for g in range(0, m, n) for c in range(v) for i in range(n)]\n"
BACKWARDS = '    backwards: list[Action] = [("BW", v - 1 - c, i) for c, i in visits]\n'
WARM_UP = "    warm_up = n - stage - 1 if v == 1 else 2 * (n - stage - 1) + (v - 1) * n\n"
CAPPED = "    warm_up = min(warm_up, v * m)\n"
STEADY = "    steady = [action for pair in zip(forwards[warm_up:], backwards) for action in pair]\n"
RETURNED = "    return forwards[:warm_up] + steady + backwards[v * m - warm_up :]\n"
GROUPS = """    if m % n:
        raise ValueError(f"{m} micro-batches do not divide into groups of {n}")
    # the order"""
IN_THEORY = "    return (n - 1) / (v * m + n - 1)\n"
LAYER = """        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        grad_y = grad_z @ weight.T
        kept.append((x, grad_z))
"""
KEPT = "    return grad_y, kept[::-1]\n"
GRADIENTS = "    return [x.T @ grad_z for x, grad_z in kept]\n"
FIRST = "    warm_up = min(num_stages - stage - 1, m)\n"
FORWARD = """        if i + warm_up < m:
            actions.append(("F", 0, i + warm_up))
"""
WEIGHTS = """        if i >= stage:  # stage s is s weight gradients behind, so n micro-batches are alive
            actions.append(("W", 0, i - stage))
"""
REST = '    return actions + [("W", 0, i) for i in range(max(m - stage, 0), m)]\n'
STAGE = """    if not 0 <= stage < counts["num_stages"]:
        raise ValueError(f"stage {stage} is not one of {counts['num_stages']}")
"""
COUNTS = """    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, and has to be positive")
"""
ACTION = "Action = tuple[str, int, int]  # (kind, chunk, micro-batch)\n"


def mutant(name: str, old: str, new: str, caught: set[str], words: str) -> Mutant:
    return Mutant(name, "schedules", old, new, caught, words)


MUTANTS = [
    # ——— 8.1: the layers
    mutant(
        "a stage has consecutive parts",
        CUT,
        """    first = stage * num_chunks
    return [range(p * each, (p + 1) * each) for p in range(first, first + num_chunks)]
""",
        LAYERS,
        "These are consecutive parts of the model. Chunk c of stage s is part c·n + s",
    ),
    mutant(
        "the layers of a stage in one list",
        CUT,
        """    own = range(stage, parts, num_stages)
    return [layer for p in own for layer in range(p * each, (p + 1) * each)]
""",
        LAYERS,
        "Return a list of ranges, one for each chunk",
    ),
    mutant(
        "the numbers of the parts",
        CUT,
        "    return [range(part, part + 1) for part in range(stage, parts, num_stages)]\n",
        LAYERS,
        "These ranges count parts, not layers. A part has L/(n·v) layers",
    ),
    mutant(
        "the last chunk takes the rest",
        NO_CUT,
        "    if num_layers < parts:\n",
        LAYERS,
        "expected a ValueError on every rank",
    ),
    mutant(
        "no layer is cut",
        NO_CUT,
        "    if num_layers % parts:\n",
        {"hidden chunk_layers"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "chunk_layers works only in a world of one rank",
        CUT,
        """    if torch.distributed.get_world_size() > 1:
        raise RuntimeError("several ranks")
""" + CUT,
        {"hidden chunk_layers"},
        "several ranks",
    ),
    # ——— 8.1: the schedule
    mutant(
        "all micro-batches go through a chunk before the next chunk",
        VISITS,
        "    visits = [(c, i) for c in range(v) for i in range(m)]\n",
        INTERLEAVED,
        "('BW', 1, 0) comes before ('F', 1, 0)",
    ),
    mutant(
        "a micro-batch goes through all chunks before the next micro-batch",
        VISITS,
        "    visits = [(c, i) for i in range(m) for c in range(v)]\n",
        INTERLEAVED,
        "no stage can go on",
    ),
    mutant(
        "the backward passes begin with the first chunk",
        BACKWARDS,
        '    backwards: list[Action] = [("BW", c, i) for c, i in visits]\n',
        INTERLEAVED,
        "from the last chunk to the first",
    ),
    mutant(
        "the warm-up is that of one chunk",
        WARM_UP,
        "    warm_up = n - stage - 1\n",
        INTERLEAVED,
        "comes before ('F', 1, 0)",
    ),
    mutant(
        "the warm-up of one chunk is one pass too short",
        WARM_UP,
        "    warm_up = max(n - stage - 2, 0) if v == 1 else 2 * (n - stage - 1) + (v - 1) * n\n",
        LATE,
        "Is the warm-up too short?",
    ),
    mutant(
        "the warm-up is one pass too long",
        WARM_UP,
        "    warm_up = n - stage if v == 1 else 2 * (n - stage) - 1 + (v - 1) * n\n",
        MUCH,
        "but at most 5 are allowed",
    ),
    mutant(
        "one chunk has the warm-up of several",
        WARM_UP,
        "    warm_up = 2 * (n - stage - 1) + (v - 1) * n\n",
        MUCH,
        "Is the warm-up too long?",
    ),
    mutant(
        "all forward passes of all chunks come first",
        CAPPED,
        "    warm_up = v * m\n",
        MUCH,
        "All forward passes come before all backward passes, as in GPipe",
    ),
    mutant(
        "all micro-batches through chunk 0 first, then as in GPipe",
        RETURNED,
        """    if v > 1:
        passes = sorted(forwards, key=lambda action: action[1:])
        return passes + sorted(backwards, key=lambda action: (-action[1], action[2]))
    return forwards[:warm_up] + steady + backwards[v * m - warm_up :]
""",
        MUCH,
        "all micro-batches go through chunk 0 before the first goes through chunk 1",
    ),
    mutant(
        "the warm-up of chunks is longer than the schedule",
        CAPPED,
        "",
        INTERLEAVED,
        "is missing",
    ),
    mutant(
        "the steady phase begins with a backward pass",
        STEADY,
        "    steady = [action for pair in zip(backwards, forwards[warm_up:]) for action in pair]\n",
        INTERLEAVED,
        "comes before",
    ),
    mutant(
        "the cool-down is missing",
        RETURNED,
        "    return forwards[:warm_up] + steady\n",
        INTERLEAVED,
        "is missing",
    ),
    mutant(
        "the kinds are those of part 5",
        RETURNED,
        """    names = {"F": "forward", "BW": "backward"}
    made = forwards[:warm_up] + steady + backwards[v * m - warm_up :]
    return [(names[kind], c, i) for kind, c, i in made]
""",
        INTERLEAVED,
        "the kinds are F and BW",
    ),
    mutant(
        "actions without chunks",
        RETURNED,
        """    made = forwards[:warm_up] + steady + backwards[v * m - warm_up :]
    return [(kind, i) for kind, _, i in made]
""",
        INTERLEAVED,
        "this is not a list of actions like ('F', 0, 0)",
    ),
    # Among the public examples, only the one with three stages and two chunks shows this mistake.
    mutant(
        "the warm-up is longer if the number of stages is odd",
        "else 2 * (n - stage - 1) + (v - 1) * n\n",
        "else 2 * (n - stage - 1) + (v - 1) * n + 2 * (n % 2)\n",
        MUCH,
        "activations are alive, but at most",
    ),
    mutant(
        "the same list in each call of interleaved_schedule",
        RETURNED,
        """    made = forwards[:warm_up] + steady + backwards[v * m - warm_up :]
    return MADE.setdefault((stage, n, v, m), made)


MADE = {}
""",
        {"public interleaved", "hidden interleaved"},
        "new list in each call",
    ),
    mutant(
        "any number of micro-batches divides",
        GROUPS,
        "    # the order",
        {"public interleaved", "hidden interleaved_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "fewer micro-batches than stages count as a group",
        GROUPS,
        GROUPS.replace("if m % n:", "if m > n and m % n:"),
        {"hidden interleaved_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "any stage is one",
        STAGE,
        "",
        {
            "public zero_bubble",
            "hidden chunk_layers",
            "hidden interleaved_misuse",
            "hidden zero_bubble_misuse",
        },
        "expected a ValueError on every rank",
    ),
    mutant(
        "no count is looked at",
        COUNTS,
        "",
        {
            "hidden chunk_layers",
            "hidden interleaved_misuse",
            "hidden interleaved_bubble",
            "hidden zero_bubble_misuse",
        },
        "ValueError",
    ),
    mutant(
        "the warm-up of all stages but the last is too short",
        WARM_UP,
        "    warm_up = n - 1 if v == n == 1 else n - stage - 1 + (v - 1) * n - (stage < n - 1)\n",
        LATE,
        "Is the warm-up too short?",
    ),
    mutant(
        "interleaved_schedule works only in a world of one rank",
        "    visits = [",
        """    if torch.distributed.get_world_size() > 1:
        raise RuntimeError("several ranks")
    visits = [""",
        {"hidden interleaved"},
        "several ranks",
    ),
    mutant(
        "interleaved_schedule goes by the size of the world",
        "    # the order of the forward",
        """    n = torch.distributed.get_world_size() if torch.distributed.get_world_size() > 1 else n
    stage = stage if torch.distributed.get_world_size() == 1 else torch.distributed.get_rank()
    # the order of the forward""",
        {"hidden interleaved"},
        "A schedule may depend only on the arguments",
    ),
    # ——— 8.1: the bubble
    mutant(
        "the bubble is idle time by ideal time",
        IN_THEORY,
        "    return (n - 1) / (v * m)\n",
        BUBBLE,
        "this is the idle time divided by the ideal time. Divide it by the total time",
    ),
    mutant(
        "the bubble is that of one chunk",
        IN_THEORY,
        "    return (n - 1) / (m + n - 1)\n",
        BUBBLE,
        "this is the bubble for one chunk per stage. With v chunks it is smaller",
    ),
    mutant(
        "the bubble is that of one chunk, divided by v",
        IN_THEORY,
        "    return (n - 1) / (m + n - 1) / v\n",
        BUBBLE,
        "this is the bubble of 1F1B divided by v. With v chunks, the total time is shorter, too",
    ),
    mutant(
        "the bubble of any number of micro-batches",
        """    if m % n:
        raise ValueError(f"{m} micro-batches do not divide into groups of {n}")
    return (n""",
        "    return (n",
        BUBBLE,
        "expected a ValueError on every rank",
    ),
    mutant(
        "interleaved_bubble works only in a world of one rank",
        IN_THEORY,
        """    if torch.distributed.get_world_size() > 1:
        raise RuntimeError("several ranks")
""" + IN_THEORY,
        {"hidden interleaved_bubble"},
        "several ranks",
    ),
    # ——— 8.2
    mutant(
        "the weight is not transposed",
        "        grad_y = grad_z @ weight.T\n",
        "        grad_y = grad_z @ weight\n",
        HALVES,
        "grad_z was multiplied by W. Multiply it by the transpose",
    ),
    mutant(
        "no derivative of gelu",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)\n",
        "        grad_z = grad_y\n",
        HALVES,
        "the derivative of gelu is missing",
    ),
    mutant(
        "the derivative of gelu at x",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)\n",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, x)\n",
        HALVES,
        "gelu′ was computed from x",
    ),
    mutant(
        "the derivative of the other gelu",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)\n",
        '        grad_z = torch.ops.aten.gelu_backward(grad_y, z, approximate="tanh")\n',
        HALVES,
        "differs",
    ),
    mutant(
        "the backward pass begins with the first layer",
        "    for weight, (x, z) in reversed(list(zip(weights, saved))):\n",
        "    for weight, (x, z) in zip(weights, saved):\n",
        HALVES,
        "the backward pass went from the first layer to the last",
    ),
    mutant(
        "the last layer is kept first",
        KEPT,
        "    return grad_y, kept\n",
        HALVES,
        "the layers are in reverse order. Put the first layer first",
    ),
    mutant(
        "the gradient of the output is kept",
        LAYER,
        """        kept.append((x, grad_y))
        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        grad_y = grad_z @ weight.T
""",
        HALVES,
        "this is the gradient of the layer's output, not that of z",
    ),
    mutant(
        "what was saved is kept",
        KEPT,
        "    return grad_y, list(saved)\n",
        HALVES,
        "this is z from saved. Return its gradient, grad_z, instead",
    ),
    mutant(
        "x and grad_z in the other order",
        LAYER,
        LAYER.replace("(x, grad_z)", "(grad_z, x)"),
        HALVES,
        "x and grad_z are swapped",
    ),
    mutant(
        "B overwrites the gradient that it was given",
        LAYER,
        """        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        if not kept:
            grad_y.copy_(grad_z)
        grad_y = grad_z @ weight.T
        kept.append((x, grad_z))
""",
        {"public halves", "hidden halves"},
        "modified its input",
    ),
    mutant(
        "B uses up the list of what was saved",
        "    return grad_y, kept[::-1]\n",
        "    saved.clear()\n    return grad_y, kept[::-1]\n",
        {"public halves", "hidden halves"},
        "tensors in the list were added, removed or replaced",
    ),
    mutant(
        "B also computes the gradients of the weights",
        LAYER,
        LAYER + "        x.T @ grad_z\n",
        {"public halves", "hidden each_half_does_its_own_work"},
        "Does it also compute the gradients of the weights? backward_weights does that",
    ),
    mutant(
        "B also computes the gradients of the weights with numpy",
        LAYER,
        LAYER + "        x.numpy().T @ grad_z.numpy()\n",
        {"hidden each_half_does_its_own_work"},
        "According to the operating system, backward_input used",
    ),
    mutant(
        "B also computes the gradients of the weights in another thread",
        LAYER,
        LAYER + """        import threading

        thread = threading.Thread(target=torch.mm, args=(x.T, grad_z))
        thread.start()
        thread.join()
""",
        {"hidden each_half_does_its_own_work"},
        "perhaps with numpy or in another thread",
    ),
    mutant(
        "B computes the gradients of the weights, and W returns them",
        LAYER,
        LAYER + "        grad_z.of_weight = x.T @ grad_z\n",
        {"public halves", "hidden each_half_does_its_own_work"},
        "Does it also compute the gradients of the weights? backward_weights does that",
    ),
    mutant(
        "W computes everything twice",
        GRADIENTS,
        "    [x.T @ grad_z for x, grad_z in kept]\n" + GRADIENTS,
        {"hidden each_half_does_its_own_work"},
        "backward_weights computed",
    ),
    mutant(
        "B keeps a copy of x if x is not contiguous",
        "        kept.append((x, grad_z))\n",
        "        kept.append((x.contiguous(), grad_z))\n",
        {"hidden input_frees_z"},
        "even if x is not contiguous",
    ),
    mutant(
        "grad_z lies beside z in memory",
        LAYER,
        """        all_three = torch.stack([z, grad_y, torch.ops.aten.gelu_backward(grad_y, z)])
        grad_z = all_three[2]
        grad_y = grad_z @ weight.T
        kept.append((x, grad_z))
""",
        {"public halves", "hidden input_frees_z"},
        "Keep neither z nor a view of z",
    ),
    mutant(
        "B keeps in a list of its own what was saved",
        KEPT,
        """    KEPT.append(saved)
    return grad_y, kept[::-1]


KEPT = []
""",
        {"hidden input_frees_z", "hidden zero_bubble_memory"},
        "B must not keep z",
    ),
    mutant(
        "B keeps the z of one layer of the last 16 micro-batches",
        LAYER + KEPT,
        LAYER + """    LAST.append(saved[0][1])
    del LAST[:-16]
    return grad_y, kept[::-1]


LAST = []
""",
        {"hidden input_frees_z", "hidden zero_bubble_memory"},
        "of earlier micro-batches were still in memory",
    ),
    mutant(
        "B keeps the z of the last micro-batch",
        KEPT,
        """    backward_input.last = z
    return grad_y, kept[::-1]
""",
        {"hidden input_frees_z", "hidden zero_bubble_memory"},
        "Keep only what you return",
    ),
    mutant(
        "B keeps copies of the z of one layer",
        KEPT,
        """    LAST.append(z.clone())
    return grad_y, kept[::-1]


LAST = []
""",
        {"hidden input_frees_z", "hidden zero_bubble_memory"},
        "According to the operating system, the process then held",
    ),
    mutant(
        "W keeps the x of the last micro-batch",
        GRADIENTS,
        """    backward_weights.last = kept[-1][0]
    return [x.T @ grad_z for x, grad_z in kept]
""",
        {"hidden zero_bubble_memory"},
        "Something still keeps a micro-batch's tensors after its W",
    ),
    mutant(
        "W keeps in a list of its own what it has used",
        GRADIENTS,
        """    USED.append(kept)
    return [x.T @ grad_z for x, grad_z in kept]


USED = []
""",
        {"hidden zero_bubble_memory"},
        "Something still keeps a micro-batch's tensors after its W",
    ),
    mutant(
        "the gradients of the weights are transposed",
        GRADIENTS,
        "    return [grad_z.T @ x for x, grad_z in kept]\n",
        HALVES,
        "this is the transpose. The gradient is xᵀ @ grad_z",
    ),
    mutant(
        "the gradients of the weights are means over the rows",
        GRADIENTS,
        "    return [x.T @ grad_z / len(x) for x, grad_z in kept]\n",
        HALVES - {"public run_zero_bubble"},  # it has micro-batches of one row
        "this is divided by the number of rows",
    ),
    mutant(
        "the gradients of the weights begin with the last layer",
        GRADIENTS,
        "    return [x.T @ grad_z for x, grad_z in reversed(kept)]\n",
        HALVES,
        "the layers are in reverse order. Put the first layer first",
    ),
    mutant(
        "B writes into a ring of four buffers",
        LAYER,
        """        rings = backward_input.__dict__.setdefault("rings", {})
        ring = rings.setdefault((len(kept), z.shape), [torch.empty_like(z) for _ in range(4)])
        ring.append(ring.pop(0))
        grad_z = ring[0].copy_(torch.ops.aten.gelu_backward(grad_y, z))
        grad_y = grad_z @ weight.T
        kept.append((x, grad_z))
""",
        # In the zero-bubble schedule of few stages, four are enough. But they take memory.
        {"hidden run_halves", "hidden input_frees_z"},
        "the list of the chunks' gradients is wrong",
    ),
    # ——— 8.3
    mutant(
        "zero_bubble_schedule works only in a world of one rank",
        FIRST,
        """    if torch.distributed.get_world_size() > 1:
        raise RuntimeError("several ranks")
""" + FIRST,
        {"hidden run_zero_bubble", "hidden run_zero_bubble_on_gloo"},
        "several ranks",
    ),
    mutant(
        "each W follows its B, and some come again",
        WEIGHTS,
        '        actions.append(("W", 0, i))\n',
        ZERO_BUBBLE,
        "is there 2 times, not once",
    ),
    mutant(
        "each W follows its B at once",
        WEIGHTS + REST,
        '        actions.append(("W", 0, i))\n    return actions\n',
        IDLE,
        "each W comes before the next B",
    ),
    mutant(
        "all W come at the end",
        WEIGHTS + REST,
        '    return actions + [("W", 0, i) for i in range(m)]\n',
        ALIVE | IDLE | {"hidden zero_bubble_memory"},
        "All W come at the end. A micro-batch keeps its activation until its W",
    ),
    mutant(
        "all forward passes come first",
        FIRST,
        "    warm_up = m\n",
        ALIVE | IDLE | {"hidden zero_bubble_memory"},
        "micro-batches are between F and B",
    ),
    mutant(
        "W is one micro-batch later",
        WEIGHTS + REST,
        """        if i > stage:
            actions.append(("W", 0, i - stage - 1))
    return actions + [("W", 0, i) for i in range(max(m - stage - 1, 0), m)]
""",
        ALIVE | {"hidden zero_bubble_idle_time"},
        "activations are alive",
    ),
    mutant(
        "W is one micro-batch earlier",
        WEIGHTS + REST,
        """        late = max(stage - 1, 0)
        if i >= late:
            actions.append(("W", 0, i - late))
    return actions + [("W", 0, i) for i in range(max(m - late, 0), m)]
""",
        IDLE,
        "ZB-H1 ends at",
    ),
    mutant(
        "W is equally late on all stages",
        WEIGHTS + REST,
        """        late = num_stages - 1
        if i >= late:
            actions.append(("W", 0, i - late))
    return actions + [("W", 0, i) for i in range(max(m - late, 0), m)]
""",
        ALIVE | IDLE,
        "activations are alive",
    ),
    mutant(
        "W is the later the earlier the stage",
        WEIGHTS + REST,
        """        late = num_stages - 1 - stage
        if i >= late:
            actions.append(("W", 0, i - late))
    return actions + [("W", 0, i) for i in range(max(m - late, 0), m)]
""",
        ALIVE | IDLE,
        "activations are alive",
    ),
    mutant(
        "the warm-up is one pass too short",
        FIRST,
        "    warm_up = min(max(num_stages - stage - 2, 0), m)\n",
        IDLE,
        ", but 1F1B runs 3. Is the warm-up too short?",
    ),
    mutant(
        "stage 0 runs one forward pass more",
        FIRST,
        "    warm_up = min(num_stages - stage - (stage > 0), m)\n",
        ALIVE,
        "micro-batches are between F and B",
    ),
    mutant(
        "the warm-up is longer on later stages",
        FIRST,
        "    warm_up = min(stage, m)\n",
        ZERO_BUBBLE,
        "a stage must run at least as many forward passes as the next stage",
    ),
    mutant(
        "the warm-up is longer than the schedule",
        FIRST,
        "    warm_up = num_stages - stage - 1\n",
        FEW,
        "the kinds are F, B and W",
    ),
    mutant(
        "few micro-batches are refused",
        FIRST,
        """    if m < num_stages:
        raise ValueError(f"{m} micro-batches for {num_stages} stages")
""" + FIRST,
        FEW,
        "ValueError",
    ),
    mutant(
        "whole backward passes",
        '        actions.append(("B", 0, i))\n' + WEIGHTS + REST,
        '        actions.append(("BW", 0, i))\n    return actions\n',
        ZERO_BUBBLE,
        "('BW', 0, 0) is not a valid action",
    ),
    mutant(
        "W comes before its B",
        '        actions.append(("B", 0, i))\n' + WEIGHTS,
        WEIGHTS + '        actions.append(("B", 0, i))\n',
        ZERO_BUBBLE,
        "('W', 0, 0) comes before ('B', 0, 0)",
    ),
    mutant(
        "the last W are missing",
        REST,
        "    return actions\n",
        ZERO_BUBBLE,
        "is missing",
    ),
    mutant(
        "the last forward pass is missing",
        FORWARD,
        FORWARD.replace("< m", "< m - 1"),
        ZERO_BUBBLE,
        "is missing",
    ),
    mutant(
        "the same list in each call of zero_bubble_schedule",
        REST,
        """    made = actions + [("W", 0, i) for i in range(max(m - stage, 0), m)]
    return MADE.setdefault((stage, num_stages, m), made)


MADE = {}
""",
        {"public zero_bubble", "hidden zero_bubble"},
        "new list in each call",
    ),
    mutant(
        "chunk_layers takes a negative number of stages",
        "    _check(stage, num_stages=num_stages, num_chunks=num_chunks)\n",
        "    _check(stage, num_stages=abs(num_stages), num_chunks=num_chunks)\n",
        {"hidden chunk_layers"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "interleaved_schedule takes a negative number of stages",
        "    _check(stage, num_stages=n, num_chunks=v, num_micro_batches=m)\n",
        "    _check(stage, num_stages=abs(n), num_chunks=v, num_micro_batches=m)\n",
        {"hidden interleaved_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "interleaved_bubble takes a negative number of stages",
        "    _check(0, num_stages=n, num_chunks=v, num_micro_batches=m)\n",
        "    _check(0, num_stages=abs(n), num_chunks=v, num_micro_batches=m)\n",
        {"hidden interleaved_bubble"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "zero_bubble_schedule takes a negative number of stages",
        "    _check(stage, num_stages=num_stages, num_micro_batches=num_micro_batches)\n",
        "    _check(stage, num_stages=abs(num_stages), num_micro_batches=num_micro_batches)\n",
        {"hidden zero_bubble_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "B keeps a copy of x",
        LAYER,
        LAYER.replace("(x, grad_z)", "(x.clone(), grad_z)"),
        {"hidden input_frees_z"},
        "a copy of x",
    ),
    mutant(
        "all forward passes come first, if there are many micro-batches",
        CAPPED,
        "    warm_up = v * m if m > 3 * n else min(warm_up, v * m)\n",
        {"hidden interleaved_alive"},
        "All forward passes come before all backward passes",
    ),
    mutant(
        "W follows each B, if there are many stages",
        '        if i >= stage:  # stage s is s weight gradients behind, so n micro-batches are alive\n            actions.append(("W", 0, i - stage))\n    return actions + [("W", 0, i) for i in range(max(m - stage, 0), m)]\n',
        '        behind = stage if num_stages <= 12 else 0\n        if i >= behind:\n            actions.append(("W", 0, i - behind))\n    return actions + [("W", 0, i) for i in range(max(m - behind, 0), m)]\n',
        {"hidden zero_bubble_idle_time"},
        "each W comes before the next B",
    ),
    mutant(
        "each transposed weight is computed once",
        "        grad_y = grad_z @ weight.T\n        kept.append((x, grad_z))\n",
        "        kept_weights = backward_input.__dict__\n        grad_y = grad_z @ kept_weights.setdefault(str(id(weight)), weight.T.clone())\n        kept.append((x, grad_z))\n",
        {"hidden halves"},
        "Does the function keep something that it has computed from earlier values?",
    ),
    mutant(
        "the derivative of gelu is divided by z",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)\n",
        "        density = torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5\n        grad_z = grad_y * (torch.nn.functional.gelu(z) / z + z * density)\n",
        {"hidden halves"},
        "nan",
    ),
]
