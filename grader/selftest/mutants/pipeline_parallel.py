"""Part 5 · Pipeline parallelism: wrong submissions."""

from grader.diagnosis.root_cause import DEADLOCK
from grader.selftest.mutants.mutant import Mutant

BACKWARD = {"public backward", "hidden backward", "hidden backward_flows", "hidden backward_twice"}
RUN = {
    "public run_schedule",
    "hidden run_schedule",
    "hidden run_other_legal_schedules",
    "hidden run_schedule_frees",
    "hidden run_schedule_frees_what_was_sent",
    "hidden run_schedule_twice",
}
# The checks in which messages keep the order of nccl.
IN_ORDER = {
    "public run_schedule_in_the_order_of_gpus",
    "hidden run_schedule_in_the_order_of_gpus",
}
FREES = {"hidden run_schedule_frees", "hidden run_schedule_frees_what_was_sent"}
FORWARD = {"public forward", "hidden forward", "hidden forward_flows"}

# the beginning of pipeline_forward, up to the input of a micro-batch
START_OF_FORWARD = """    outputs = []
    saved = []
    sends = []
    for i in range(num_micro_batches):
        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)"""

# The same, if the last stage first receives all micro-batches into the list ``early``.
RECEIVED_FIRST = """    outputs = []
    saved = []
    sends = []
    early = []
    if 0 < stage == last_stage:
{}
    for i in range(num_micro_batches):
        if early:
            x_i = early[i]
        else:
            x_i = (
                x[i * rows : (i + 1) * rows]
                if stage == 0
                else _receive(rows, weights[0], stage - 1)
            )"""

# a part of pipeline_backward, up to the gradient on the last stage
START_OF_BACKWARD = """    for i, saved_i in enumerate(saved):
        if stage == last_stage:
            grad_y = grad_loss[i * rows : (i + 1) * rows]"""

# The same, if the first stage first receives all gradients into the list ``early``.
GRADIENTS_FIRST = """    early = []
    if stage == 0 < last_stage:
{}
    for i, saved_i in enumerate(saved):
        if early:
            grad_y = early[i]
        elif stage == last_stage:
            grad_y = grad_loss[i * rows : (i + 1) * rows]"""

# a backward pass of run_schedule that leaves the gradients of the weights to the last pass
LATE_GRADIENTS = """                grad_x, pairs = grad_y, []
                for weight, (own_x, z) in zip(weights[::-1], alive.pop(i)[::-1]):
                    pairs.insert(0, (own_x, torch.ops.aten.gelu_backward(grad_x, z)))
                    grad_x = pairs[0][1] @ weight.T
                late = alive.setdefault(-1, [])
                late.append(pairs)
                if len(late) == num_micro_batches:
                    for total, *of_layer in zip(totals, *late):
                        xs, grads = zip(*of_layer)"""

MUTANTS = [
    Mutant(
        "the last stage takes the remainder",
        "pipeline_parallel",
        "bounds = [stage * each + min(stage, remainder) for stage in range(num_stages + 1)]",
        "bounds = [stage * each for stage in range(num_stages)] + [num_layers]",
        {"public split_layers", "hidden split_layers"},
        "expected the layers [[0, 1], [2, 3], [4]], got [[0], [1], [2, 3, 4]]",
    ),
    Mutant(
        "all micro-batches are received before one is sent on",
        "pipeline_parallel",
        """            # this stage goes on with the next micro-batch, and does not wait for the next stage
            sends.append(dist.isend(y_i, dst=stage + 1))
""",
        """            outputs.append(y_i)
            if i == num_micro_batches - 1:
                sends = [dist.isend(y_j, dst=stage + 1) for y_j in outputs]
""",
        {"hidden forward_flows"},
        "micro-batches when it sent micro-batch 0 (counted from 0)",
    ),
    Mutant(
        "the last stage receives all micro-batches before it computes one",
        "pipeline_parallel",
        START_OF_FORWARD,
        RECEIVED_FIRST.format(
            "        early = [_receive(rows, weights[0], stage - 1) for _ in range(num_micro_batches)]"
        ),
        {"hidden forward_flows"},
        "Compute with each message before you wait for the next one.",
    ),
    Mutant(
        "the first stage receives all gradients before it computes with one",
        "pipeline_parallel",
        START_OF_BACKWARD,
        GRADIENTS_FIRST.format(
            "        early = [_receive(rows, weights[0], stage + 1) for _ in saved]"
        ),
        {"hidden backward_flows"},
        "Compute with each message before you wait for the next one.",
    ),
    Mutant(
        "another thread receives all micro-batches of the last stage before it computes one",
        "pipeline_parallel",
        START_OF_FORWARD,
        RECEIVED_FIRST.format("""        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            sources = [stage - 1] * num_micro_batches
            early = list(pool.map(lambda source: _receive(rows, weights[0], source), sources))"""),
        {"hidden forward_flows"},
        "rank 1 used only",
    ),
    Mutant(
        "another thread receives all gradients of the first stage before it computes with one",
        "pipeline_parallel",
        START_OF_BACKWARD,
        GRADIENTS_FIRST.format("""        import threading

        def receive():
            for _ in saved:
                early.append(_receive(rows, weights[0], stage + 1))

        thread = threading.Thread(target=receive)
        thread.start()
        thread.join()"""),
        {"hidden backward_flows"},
        "rank 0 used only",
    ),
    Mutant(
        "a stage receives for all its first forward passes before it computes one",
        "pipeline_parallel",
        """    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received""",
        """    kinds = [kind for kind, _ in schedule]
    early = []
    if stage > 0 and "backward" not in kinds[:num_micro_batches]:
        for place in range(num_micro_batches):
            early.append(_exchange(rows, weights[0], receive_from=previous_stage)[1])
            sources[place] = None
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            if early:
                received = early.pop(0)
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received""",
        {"hidden run_schedule"},
        "Compute with each message before you wait for the next one.",
    ),
    Mutant(
        "all micro-batches are received before one is computed",
        "pipeline_parallel",
        START_OF_FORWARD,
        """    outputs = []
    saved = []
    sends = []
    if stage > 0:
        x = torch.cat([_receive(rows, weights[0], stage - 1) for _ in range(num_micro_batches)])
    for i in range(num_micro_batches):
        x_i = x[i * rows : (i + 1) * rows]""",
        {"hidden forward_flows"},
        "rank 1 received message 0 (counted from 0) from rank 0. Then it waited for the next message, although it had not sent",
    ),
    Mutant(
        "the first stage computes everything before it sends anything, by numpy, which the meter does not see",
        "pipeline_parallel",
        """    for i in range(num_micro_batches):
        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i = _stage_forward(weights, x_i)
""",
        """    ahead = []
    for x_i in x.split(rows) if stage == 0 else ():
        saved_i = []
        for weight in weights:
            saved_i.append((x_i, torch.from_numpy(x_i.numpy() @ weight.numpy())))
            x_i = torch.nn.functional.gelu(saved_i[-1][1])
        ahead.append((x_i, saved_i))
    for i in range(num_micro_batches):
        y_i, saved_i = ahead[i] if ahead else _stage_forward(weights, _receive(rows, weights[0], stage - 1))
""",
        {"hidden forward_flows"},
        "The grader sees only torch's products (@, mm, bmm, …) in the thread",
    ),
    Mutant(
        "the last stage goes all the way back before it sends anything, by numpy, which the meter does not see",
        "pipeline_parallel",
        """    for i, saved_i in enumerate(saved):
        if stage == last_stage:
            grad_y = grad_loss[i * rows : (i + 1) * rows]
        else:
            grad_y = _receive(rows, weights[0], stage + 1)
        grad_x = _stage_backward(weights, saved_i, grad_y, totals)
""",
        """    ahead = []
    for i, saved_i in enumerate(saved) if stage == last_stage else ():
        grad_x = grad_loss[i * rows : (i + 1) * rows]
        for weight, (x, z), total in zip(reversed(weights), reversed(saved_i), reversed(totals)):
            grad_z = torch.ops.aten.gelu_backward(grad_x, z)
            total += torch.from_numpy(x.numpy().T @ grad_z.numpy())
            grad_x = torch.from_numpy(grad_z.numpy() @ weight.numpy().T)
        ahead.append(grad_x)
    for i, saved_i in enumerate(saved):
        grad_x = (
            ahead[i]
            if ahead
            else _stage_backward(weights, saved_i, _receive(rows, weights[0], stage + 1), totals)
        )
""",
        {"hidden backward_flows"},
        "The grader sees only torch's products (@, mm, bmm, …) in the thread",
    ),
    Mutant(
        "stage 0 goes forward with all micro-batches before its first action, by numpy, which the meter does not see",
        "pipeline_parallel",
        """    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received
            with timeline.span(kind, i):
                y_i, alive[i] = _stage_forward(weights, x_i)
""",
        """    ahead = []
    for x_i in x.split(rows) if stage == 0 else ():
        saved_i = []
        for weight in weights:
            saved_i.append((x_i, torch.from_numpy(x_i.numpy() @ weight.numpy())))
            x_i = torch.nn.functional.gelu(saved_i[-1][1])
        ahead.append((x_i, saved_i))
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = received
            with timeline.span(kind, i):
                y_i, alive[i] = ahead[i] if stage == 0 else _stage_forward(weights, x_i)
""",
        {"hidden run_schedule"},
        "Send each result as soon as it is computed",
    ),
    Mutant(
        "the first stage computes all micro-batches before it sends one, then wastes work",
        "pipeline_parallel",
        """    outputs = []
    saved = []
    sends = []
    for i in range(num_micro_batches):
        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i = _stage_forward(weights, x_i)
        saved.append(saved_i)
        if stage == last_stage:
            outputs.append(y_i)
        else:
            # this stage goes on with the next micro-batch, and does not wait for the next stage
            sends.append(dist.isend(y_i, dst=stage + 1))
""",
        """    outputs = []
    saved = []
    sends = []
    ahead = []
    if stage == 0 and last_stage:
        ahead = [_stage_forward(weights, x[i * rows : (i + 1) * rows]) for i in range(num_micro_batches)]
    for i in range(num_micro_batches):
        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        if ahead:
            y_i, saved_i = ahead[i]
            for _ in range(num_micro_batches):
                _stage_forward(weights, x_i)
        else:
            y_i, saved_i = _stage_forward(weights, x_i)
        saved.append(saved_i)
        if stage == last_stage:
            outputs.append(y_i)
        else:
            # this stage goes on with the next micro-batch, and does not wait for the next stage
            sends.append(dist.isend(y_i, dst=stage + 1))
    for k in range(num_micro_batches * num_micro_batches if ahead else 0):
        _stage_forward(weights, x_i)
""",
        {"hidden forward_flows"},
        "and compute each x @ W once",
    ),
    Mutant(
        "the batch as a whole",
        "pipeline_parallel",
        "    outputs = []\n    saved = []\n    sends = []\n",
        """    if dist.get_world_size() == 2 and stage == 0 and rows > 0:
        whole, _ = _stage_forward(weights, x)
    outputs = []
    saved = []
    sends = []
""",
        {"hidden forward_flows"},
        "rows in one product; a micro-batch has",
    ),
    Mutant(
        "outputs in reverse order",
        "pipeline_parallel",
        "            outputs.append(y_i)",
        "            outputs.insert(0, y_i)",
        FORWARD,
        "the micro-batches are in reverse order",
    ),
    Mutant(
        "micro-batches are interleaved rows",
        "pipeline_parallel",
        """        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i""",
        """        x_i = x[i::num_micro_batches] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i""",
        FORWARD | {"hidden forward_saves"},
        "micro-batch i holds every m-th row (i, i + m, …). Take consecutive rows",
    ),
    Mutant(
        "a batch that does not divide loses its last rows",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        "    if num_micro_batches < 1:",
        {
            "public forward",
            "hidden forward_misuse",
            "hidden run_schedule_misuse",
            "public run_schedule_misuse",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "each micro-batch's loss is a mean over its own rows",
        "pipeline_parallel",
        "    grad_loss = mlp.loss_backward(y) if stage == last_stage else None",
        "    grad_loss = mlp.loss_backward(y) * len(saved) if stage == last_stage else None",
        BACKWARD,
        "each micro-batch's loss was the mean over its own rows, and nothing was divided",
    ),
    Mutant(
        "gradients are averaged over the micro-batches, too",
        "pipeline_parallel",
        "    for send in sends:\n        send.wait()\n    return totals",
        """    for send in sends:
        send.wait()
    return [total / len(saved) for total in totals]""",
        BACKWARD,
        "divided by the number of micro-batches one time too many",
    ),
    Mutant(
        "overwritten where it should add up",
        "pipeline_parallel",
        "        total.addmm_(x.T, grad_z)",
        "        torch.mm(x.T, grad_z, out=total)",
        BACKWARD | RUN,
        "this is only the last micro-batch's gradient",
    ),
    Mutant(
        "the stages take the micro-batches in different orders",
        "pipeline_parallel",
        "    for i, saved_i in enumerate(saved):",
        "    for i, saved_i in enumerate(saved if stage == last_stage else reversed(saved)):",
        BACKWARD,
        "the gradient of one micro-batch was combined with the activations of another",
    ),
    Mutant(
        "a gradient is sent on at the end",
        "pipeline_parallel",
        "            sends.append(dist.isend(grad_x, dst=stage - 1))",
        """            sends.append(grad_x)
    sends = [dist.isend(grad_x, dst=stage - 1) for grad_x in sends]""",
        {"hidden backward_flows"},
        "Send each result back to the previous stage as soon as it is ready",
    ),
    Mutant(
        "GPipe's backward pass of a micro-batch follows its forward pass",
        "pipeline_parallel",
        '    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]',
        '    return [(kind, i) for i in range(num_micro_batches) for kind in ("forward", "backward")]',
        {"public schedules", "hidden gpipe"},
        "a backward pass comes before the last forward pass",
    ),
    Mutant(
        "1F1B is GPipe",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = num_micro_batches",
        {"public schedules", "hidden 1f1b_alive"},
        "after ('forward', 2), 3 micro-batches are alive. The largest number alive should be 2",
    ),
    Mutant(
        "1F1B warms up by one too many",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = min(num_stages - stage, num_micro_batches)",
        {"public schedules", "hidden 1f1b_alive"},
        "at most",
    ),
    Mutant(
        "1F1B does not warm up",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = 0",
        {"public schedules", "hidden 1f1b_is_as_fast_as_gpipe"},
        "Is the warm-up too short?",
    ),
    Mutant(
        "1F1B warms up on the wrong end",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = min(stage, num_micro_batches)",
        {"public schedules", "hidden 1f1b", "hidden 1f1b_alive", "hidden 1f1b_is_as_fast_as_gpipe"},
        "no stage can go on: stage 0 waits at ('backward', 0), stage 1 waits at ('forward', 1)",
    ),
    Mutant(
        "sends that wait for their receiver, both ways",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
""",
        """            if stage < last_stage:
                dist.send(y_i, dst=stage + 1)
            _, received = _exchange(rows, weights[0], receive_from=next_source)
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if stage > 0:
                dist.send(grad_x, dst=stage - 1)
            _, received = _exchange(rows, weights[0], receive_from=next_source)
""",
        RUN | {"hidden own_timeline"},
        "every rank sends first, and no rank receives. A blocking send may wait for its receiver",
    ),
    Mutant(
        "an activation is sent when its gradient has come",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        """            sending[i] = y_i
            _, received = _exchange(rows, weights[0], receive_from=next_source)
""",
        RUN | {"hidden own_timeline"},
        "every rank receives first and nobody has sent",
    ),
    Mutant(
        "sends are never waited for",
        "pipeline_parallel",
        """                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
""",
        "                pass\n",
        {"hidden run_schedule_frees_what_was_sent", "public run_schedule"},
        "but never waits for it. isend returns immediately",
    ),
    Mutant(
        "a send is waited for twice",
        "pipeline_parallel",
        """            if stage < last_stage:
                # returns at once""",
        """            if stage < last_stage:
                sending[i].wait()
                # returns at once""",
        RUN | {"hidden own_timeline"},
        "called wait() twice on the same send or receive",
    ),
    Mutant(
        "activations are kept to the end",
        "pipeline_parallel",
        "_stage_backward(weights, alive.pop(i), grad_y, totals)",
        "_stage_backward(weights, alive[i], grad_y, totals)",
        FREES | {"public run_schedule_frees"},
        "What keeps memory after the micro-batch's backward pass?",
    ),
    Mutant(
        "the loss of the batch is a sum",
        "pipeline_parallel",
        "torch.stack(losses).mean()",
        "torch.stack(losses).sum()",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "this is the sum of the micro-batches' losses. The loss of the whole batch is their mean",
    ),
    Mutant(
        "a run forgets that the loss is a mean over the whole batch",
        "pipeline_parallel",
        "grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches",
        "grad_outputs[i] = mlp.loss_backward(y_i)",
        RUN,
        "each micro-batch's loss was the mean over its own rows",
    ),
    Mutant(
        "1F1B, whatever the schedule says",
        "pipeline_parallel",
        """    # the stage from which each action receives;""",
        """    schedule = one_forward_one_backward_schedule(stage, last_stage + 1, num_micro_batches)
    # the stage from which each action receives;""",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "its schedule is [('forward', 0),",
    ),
    Mutant(
        "the weights are updated, too",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals",
        """    for weight, total in zip(weights, totals):
        weight -= 0.01 * total
    return torch.stack(losses).mean() if stage == last_stage else None, totals""",
        {
            "public run_schedule",
            "hidden run_schedule",
            "hidden run_other_legal_schedules",
            "hidden run_schedule_twice",
        },
        "modified its input. Inputs must stay unchanged",
    ),
    Mutant(
        "any list is a schedule",
        "pipeline_parallel",
        "    _check_schedule(schedule, num_micro_batches)\n",
        "",
        {"hidden run_schedule_misuse", "public run_schedule_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "waiting counts as work",
        "pipeline_parallel",
        """    sources = [previous_stage if kind == "forward" else next_stage for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received
            with timeline.span(kind, i):
""",
        """    sources = [None if kind == "forward" else next_stage for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            with timeline.span(kind, i):
                x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
""",
        {"hidden own_timeline"},
        "Waiting for a message is not work",
    ),
    Mutant(
        "the bubble over the ideal time",
        "pipeline_parallel",
        "return (num_stages - 1) / (num_micro_batches + num_stages - 1)",
        "return (num_stages - 1) / num_micro_batches",
        {"public bubble", "hidden bubble_in_theory"},
        "the idle time divided by the ideal time",
    ),
    Mutant(
        "a stage's waiting ends with its own last span",
        "pipeline_parallel",
        "    return max(0.0, 1 - busy / (len(timelines) * total))",
        """    total = sum(max(s.end for s in of) - min(s.start for s in of) for of in timelines if of)
    return 1 - sum(span.end - span.start for span in spans) / total""",
        {"public bubble", "hidden bubble_measured"},
        "Use the same time for all stages: from the earliest start to the latest end",
    ),
    # ——— 5.1
    Mutant(
        "stages of a size that is rounded up",
        "pipeline_parallel",
        """    bounds = [stage * each + min(stage, remainder) for stage in range(num_stages + 1)]
""",
        """    bounds = [min(stage * -(-num_layers // num_stages), num_layers) for stage in range(num_stages + 1)]
""",
        {"public split_layers", "hidden split_layers"},
        "expected the layers [[0, 1], [2], [3]], got [[0, 1], [2, 3], []]",
    ),
    Mutant(
        "as many stages as layers are refused",
        "pipeline_parallel",
        "    if not 1 <= num_stages <= num_layers:",
        "    if not 1 <= num_stages < num_layers:",
        {"hidden split_layers"},
        "1 layers cannot be cut into 1 stages",
    ),
    Mutant(
        "more stages than layers get empty ranges",
        "pipeline_parallel",
        "    if not 1 <= num_stages <= num_layers:",
        "    if num_stages < 1:",
        {"hidden split_layers_misuse", "public split_layers_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "no stage at all is divided by",
        "pipeline_parallel",
        "    if not 1 <= num_stages <= num_layers:",
        "    if num_stages > num_layers:",
        {"hidden split_layers_misuse", "public split_layers_misuse"},
        "raised ZeroDivisionError",
    ),
    Mutant(
        "an error about layers without their numbers",
        "pipeline_parallel",
        'raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")',
        'raise ValueError("more stages than layers")',
        {"hidden split_layers_misuse", "public split_layers_misuse"},
        "ValueError does not mention 2, nor 3",
    ),
    # ——— 5.2
    Mutant(
        "on one stage, the forward pass computes the whole batch at once",
        "pipeline_parallel",
        START_OF_FORWARD,
        """    if last_stage == 0:
        y, whole = _stage_forward(weights, x)
        parts = [slice(i * rows, (i + 1) * rows) for i in range(num_micro_batches)]
        return y, [[(own_x[part], z[part]) for own_x, z in whole] for part in parts]
""" + START_OF_FORWARD,
        {"hidden forward_flows"},
        "rows in one product; a micro-batch has",
    ),
    Mutant(
        "on one stage, the backward pass computes the whole batch at once",
        "pipeline_parallel",
        "    grad_loss = mlp.loss_backward(y) if stage == last_stage else None\n",
        """    grad_loss = mlp.loss_backward(y) if stage == last_stage else None
    if last_stage == 0:
        whole = [tuple(map(torch.cat, zip(*of_layer))) for of_layer in zip(*saved)]
        _stage_backward(weights, whole, grad_loss, totals)
        return totals
""",
        {"hidden backward_flows"},
        "rows in one product; a micro-batch has",
    ),
    Mutant(
        "a barrier on one stage",
        "pipeline_parallel",
        START_OF_FORWARD,
        """    if last_stage == 0:
        dist.barrier()
""" + START_OF_FORWARD,
        {"hidden forward", "hidden forward_flows"},
        "rank 0 used a barrier",
    ),
    Mutant(
        "the forward pass returns y alone",
        "pipeline_parallel",
        "    return torch.cat(outputs) if stage == last_stage else None, saved\n",
        "    return torch.cat(outputs) if stage == last_stage else None\n",
        FORWARD | {"hidden forward_saves"},
        "must return a tuple of 2 values, (y, saved), on every rank. Rank 0 returned",
    ),
    Mutant(
        "z is what comes after gelu",
        "pipeline_parallel",
        "        saved.append((x, z))\n",
        "        saved.append((x, y))\n",
        {"public forward", "hidden forward_saves"} | RUN,
        "z is x @ W, before gelu",
    ),
    Mutant(
        "the layers are saved from the last to the first",
        "pipeline_parallel",
        "        saved.append((x, z))\n",
        "        saved.insert(0, (x, z))\n",
        {"public forward", "hidden forward_saves"} | RUN,
        "saved, [micro-batch][layer][x or z],",
    ),
    Mutant(
        "every stage returns its output",
        "pipeline_parallel",
        """        if stage == last_stage:
            outputs.append(y_i)
        else:
            # this stage goes on with the next micro-batch, and does not wait for the next stage
            sends.append(dist.isend(y_i, dst=stage + 1))
    for send in sends:
        send.wait()
    return torch.cat(outputs) if stage == last_stage else None, saved
""",
        """        outputs.append(y_i)
        if stage < last_stage:
            sends.append(dist.isend(y_i, dst=stage + 1))
    for send in sends:
        send.wait()
    return torch.cat(outputs), saved
""",
        FORWARD,
        "expected None, got a tensor",
    ),
    Mutant(
        "the micro-batches' outputs are stacked",
        "pipeline_parallel",
        "    return torch.cat(outputs) if",
        "    return torch.stack(outputs) if",
        FORWARD,
        "expected shape (9, 4), got (3, 3, 4)",
    ),
    Mutant(
        "every message is received as float32",
        "pipeline_parallel",
        """    return like.new_empty(rows, like.shape[1])
""",
        """    return torch.empty(rows, like.shape[1])
""",
        FORWARD | BACKWARD | RUN | {"hidden forward_saves", "hidden own_timeline"},
        "Without a dtype, torch.empty and torch.zeros make float32",
    ),
    Mutant(
        "every message is received as float64",
        "pipeline_parallel",
        """    return like.new_empty(rows, like.shape[1])
""",
        """    return torch.empty(rows, like.shape[1], dtype=torch.float64)
""",
        {"hidden forward", "hidden forward_saves", "hidden backward", "hidden run_schedule"},
        "receive of 6 × float64 from rank 0",
    ),
    Mutant(
        "one buffer for all messages",
        "pipeline_parallel",
        """    return like.new_empty(rows, like.shape[1])
""",
        """    global _buffer
    if globals().get("_buffer") is None or _buffer.shape != (rows, like.shape[1]) or _buffer.dtype != like.dtype:
        _buffer = like.new_empty(rows, like.shape[1])
    return _buffer
""",
        {"public forward", "hidden forward_saves"} | (RUN - {"hidden run_schedule_twice"}),
        "Do all micro-batches share one buffer?",
    ),
    Mutant(
        "a message is used before it is there",
        "pipeline_parallel",
        """    received = _empty_rows(rows, like)
    dist.recv(received, src=source)
""",
        """    received = _empty_rows(rows, like).zero_()
    dist.irecv(received, src=source)
""",
        FORWARD | BACKWARD | {"hidden forward_saves"},
        "but never waits for it. irecv returns immediately",
    ),
    Mutant(
        "what an action needs is used before it is there",
        "pipeline_parallel",
        """    if receive_from is not None:
        works[-1].wait()  # the work of the receive; with nccl, of both messages
""",
        "",
        RUN | IN_ORDER | {"hidden own_timeline"},
        "but never waits for it. irecv returns immediately",
    ),
    Mutant(
        "sends of the forward pass are never waited for",
        "pipeline_parallel",
        """    for send in sends:
        send.wait()
    return torch.cat(outputs)""",
        "    return torch.cat(outputs)",
        FORWARD | {"hidden forward_saves"},
        "but never waits for it. isend returns immediately",
    ),
    Mutant(
        "activations go to stage 1, whoever sends them",
        "pipeline_parallel",
        "            sends.append(dist.isend(y_i, dst=stage + 1))",
        "            sends.append(dist.isend(y_i, dst=1))",
        {"hidden forward", "hidden forward_saves", "hidden forward_flows"},
        "a rank sends to itself",
    ),
    Mutant(
        "the batch is viewed as if it were contiguous",
        "pipeline_parallel",
        "    outputs = []\n    saved = []\n    sends = []\n",
        """    if stage == 0:
        x = x.view(-1).view(batch_size, -1)
    outputs = []
    saved = []
    sends = []
""",
        {"hidden forward", "hidden forward_saves"},
        "view size is not compatible with input tensor's size and stride",
    ),
    Mutant(
        "what is saved grows from call to call",
        "pipeline_parallel",
        "    outputs = []\n    saved = []\n    sends = []\n",
        """    outputs, saved, sends = [], pipeline_forward.__dict__.setdefault("saved", []), []
""",
        {"hidden forward_saves"},
        "[micro-batch][layer][x or z], is wrong: expected a list of length",
    ),
    Mutant(
        "an output is kept, and overwritten by the next call's",
        "pipeline_parallel",
        "    return torch.cat(outputs) if stage == last_stage else None, saved",
        """    kept = pipeline_forward.__dict__.setdefault("kept", {})
    if stage == last_stage:
        y = torch.cat(outputs)
        y = kept.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)
    return y if stage == last_stage else None, saved""",
        {"hidden forward"},
        "the list of two calls' outputs is wrong",
    ),
    Mutant(
        "the shape of each further micro-batch is sent before it",
        "pipeline_parallel",
        """        if stage == last_stage:
            outputs.append(y_i)
        else:
""",
        """        if stage > 0 and i + 1 < num_micro_batches:
            dist.recv(torch.empty(2, dtype=torch.int64), src=stage - 1)
        if stage == last_stage:
            outputs.append(y_i)
        else:
            if i > 0:
                dist.send(torch.tensor(y_i.shape), dst=stage + 1)
""",
        {"hidden forward", "hidden forward_flows"},
        "messages for",
    ),
    Mutant(
        "all stages meet after the forward pass",
        "pipeline_parallel",
        """    for send in sends:
        send.wait()
    return torch.cat(outputs)""",
        """    for send in sends:
        send.wait()
    dist.barrier()
    return torch.cat(outputs)""",
        {"hidden forward", "hidden forward_flows"},
        "Stages must communicate only by sends and receives",
    ),
    Mutant(
        "only the first stage looks whether the batch divides",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        "    if dist.get_rank() == 0 and (num_micro_batches < 1 or batch_size % num_micro_batches):",
        {
            "public forward",
            "hidden forward_misuse",
            "hidden run_schedule_misuse",
            "public run_schedule_misuse",
        },
        "expected a ValueError on every rank, but rank 1",
    ),
    Mutant(
        "no micro-batch at all is divided by",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        "    if num_micro_batches < 0 or batch_size % num_micro_batches:",
        {"hidden forward_misuse", "hidden run_schedule_misuse"},
        "raised ZeroDivisionError",
    ),
    Mutant(
        "a remainder is dropped in the forward pass",
        "pipeline_parallel",
        """    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    outputs = []
    saved = []
    sends = []
""",
        """    rows = batch_size // max(num_micro_batches, 1)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    outputs = []
    saved = []
    sends = []
    if num_micro_batches < 1 or num_micro_batches > batch_size:
        _micro_batch_rows(batch_size, num_micro_batches)
""",
        {"public forward", "hidden forward_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "what is saved is float64, whatever came in",
        "pipeline_parallel",
        "        saved.append(saved_i)\n",
        "        saved.append([(x.double(), z.double()) for x, z in saved_i])\n",
        {"hidden forward_saves"},
        "expected dtype float32, got float64",
    ),
    Mutant(
        "the stages meet before they refuse a batch",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        "    if (num_micro_batches < 1 or batch_size % num_micro_batches) and not dist.barrier():",
        {
            "public forward",
            "hidden forward_misuse",
            "hidden run_schedule_misuse",
            "public run_schedule_misuse",
        },
        "the ValueError comes too late: rank 0 had already issued the barrier",
    ),
    # ——— 5.3
    Mutant(
        "the last stage sends each gradient one micro-batch late, and computes weights' gradients last",
        "pipeline_parallel",
        """        grad_x = _stage_backward(weights, saved_i, grad_y, totals)
        if stage > 0:
            sends.append(dist.isend(grad_x, dst=stage - 1))
    for send in sends:
        send.wait()
    return totals
""",
        """        if stage < last_stage:
            grad_x = _stage_backward(weights, saved_i, grad_y, totals)
            if stage > 0:
                sends.append(dist.isend(grad_x, dst=stage - 1))
            continue
        products = []
        for weight, (x, z), total in zip(reversed(weights), reversed(saved_i), reversed(totals)):
            grad_z = torch.ops.aten.gelu_backward(grad_y, z)
            products.append((total, x, grad_z))
            grad_y = grad_z @ weight.T
        if i and stage > 0:
            sends.append(dist.isend(late, dst=stage - 1))
        if i:
            for total, x, grad_z in postponed:
                total.addmm_(x.T, grad_z)
        late, postponed = grad_y, products
    if stage == last_stage:
        if stage > 0:
            sends.append(dist.isend(late, dst=stage - 1))
        for total, x, grad_z in postponed:
            total.addmm_(x.T, grad_z)
    for send in sends:
        send.wait()
    return totals
""",
        {"hidden backward_flows"},
        "micro-batches when it sent",
    ),
    Mutant(
        "the layers of a stage go back in the order of the forward pass",
        "pipeline_parallel",
        """    for weight, (x, z), total in zip(reversed(weights), reversed(saved), reversed(totals)):
""",
        "    for weight, (x, z), total in zip(weights, saved, totals):\n",
        BACKWARD | RUN,
        "the list of the weights' gradients",
    ),
    Mutant(
        "the weight is not transposed on the way back",
        "pipeline_parallel",
        "        grad_y = grad_z @ weight.T\n",
        "        grad_y = grad_z @ weight\n",
        BACKWARD | RUN,
        "the list of the weights' gradients",
    ),
    Mutant(
        "gradients are added to those of the step before",
        "pipeline_parallel",
        "    totals = [torch.zeros_like(weight) for weight in weights]\n    sends = []\n",
        """    for weight in weights:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    totals, sends = [weight.grad for weight in weights], []
""",
        {"hidden backward_twice"},
        "the second pass's gradients were added to the first's",
    ),
    Mutant(
        "a backward pass takes what was saved out of the list",
        "pipeline_parallel",
        "    for i, saved_i in enumerate(saved):\n",
        "    for i in range(len(saved)):\n        saved_i = saved.pop(0)\n",
        {"public backward", "hidden backward_twice"},
        "IndexError: list index out of range",
    ),
    Mutant(
        "gelu's gradient is written over z",
        "pipeline_parallel",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)\n",
        "        grad_z = z.copy_(torch.ops.aten.gelu_backward(grad_y, z))\n",
        {"public backward", "hidden backward", "hidden backward_twice"},
        "modified its input",
    ),
    Mutant(
        "the stages are a ring",
        "pipeline_parallel",
        """        if stage > 0:
            sends.append(dist.isend(grad_x, dst=stage - 1))
""",
        "        sends.append(dist.isend(grad_x, dst=(stage - 1) % (last_stage + 1)))\n",
        BACKWARD,
        "returned without receiving from rank 0",
    ),
    Mutant(
        "gradients go to stage 0, whoever sends them",
        "pipeline_parallel",
        "            sends.append(dist.isend(grad_x, dst=stage - 1))\n",
        "            sends.append(dist.isend(grad_x, dst=0))\n",
        {"hidden backward", "hidden backward_flows"},
        "its receive of 18 × float64 from rank 2",
    ),
    Mutant(
        "the gradients of all stages are added up, as in data parallelism",
        "pipeline_parallel",
        "    for send in sends:\n        send.wait()\n    return totals",
        """    for send in sends:
        send.wait()
    for total in totals:
        dist.all_reduce(total)
    return totals""",
        BACKWARD,
        "returned without taking part in the all-reduce",
    ),
    Mutant(
        "every micro-batch begins with the first one's gradient of the loss",
        "pipeline_parallel",
        """        if stage == last_stage:
            grad_y = grad_loss[i * rows : (i + 1) * rows]
        else:
            grad_y = _receive(rows, weights[0], stage + 1)
""",
        """        grad_y = grad_loss[:rows] if stage == last_stage else _receive(rows, weights[0], stage + 1)
""",
        BACKWARD,
        "the list of the weights' gradients",
    ),
    Mutant(
        "the gradient of a sum of squares",
        "pipeline_parallel",
        "    grad_loss = mlp.loss_backward(y) if stage == last_stage else None",
        "    grad_loss = 2 * y if stage == last_stage else None",
        BACKWARD,
        "the list of the weights' gradients",
    ),
    Mutant(
        "the gradients are kept, and overwritten by the next call's",
        "pipeline_parallel",
        "    totals = [torch.zeros_like(weight) for weight in weights]\n    sends = []\n",
        """    kept = pipeline_backward.__dict__.setdefault("kept", {})
    kept = kept.setdefault((len(weights), weights[0].dtype, weights[0].shape), [torch.zeros_like(w) for w in weights])
    totals, sends = [total.zero_() for total in kept], []
""",
        {"hidden backward_twice"},
        "the list of both passes' gradients is wrong",
    ),
    # ——— 5.4
    Mutant(
        "micro-batches are counted from one",
        "pipeline_parallel",
        '    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]',
        '    return [(kind, i + 1) for kind in ("forward", "backward") for i in range(num_micro_batches)]',
        {"public schedules", "hidden gpipe"},
        "('forward', 0) is missing",
    ),
    Mutant(
        "gpipe_schedule works only in a world of one rank",
        "pipeline_parallel",
        """    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
""",
        """    if dist.get_world_size() > 1:
        raise RuntimeError("several ranks")
    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
""",
        {"hidden gpipe"},
        "several ranks",
    ),
    Mutant(
        "1F1B works only in a world of one rank",
        "pipeline_parallel",
        """    warm_up = min(num_stages - stage - 1, num_micro_batches)
    actions = [("forward", i) for i in range(warm_up)]
""",
        """    if dist.get_world_size() > 1:
        raise RuntimeError("several ranks")
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    actions = [("forward", i) for i in range(warm_up)]
""",
        {"hidden 1f1b", "hidden 1f1b_alive", "hidden 1f1b_is_as_fast_as_gpipe"},
        "several ranks",
    ),
    Mutant(
        "one stage goes back in reverse order, the others do not",
        "pipeline_parallel",
        '    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]',
        """    back = [("backward", i) for i in range(num_micro_batches)]
    return [("forward", i) for i in range(num_micro_batches)] + (back if stage else back[::-1])""",
        {"hidden gpipe"},
        "the stages do not have the backward passes in the same order",
    ),
    Mutant(
        "a schedule that can be gone through only once",
        "pipeline_parallel",
        '    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]',
        '    return ((kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches))',
        {"public schedules", "hidden gpipe"},
        "is not a list of pairs like ('forward', 0)",
    ),
    Mutant(
        "1F1B does not cool down",
        "pipeline_parallel",
        """    return actions + [
        ("backward", i) for i in range(num_micro_batches - warm_up, num_micro_batches)
    ]
""",
        "    return actions\n",
        {"public schedules", "hidden 1f1b", "hidden 1f1b_alive", "hidden 1f1b_is_as_fast_as_gpipe"},
        "('backward', 2) is missing",
    ),
    Mutant(
        "1F1B warms up with micro-batches that do not exist",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = num_stages - stage - 1",
        {"hidden 1f1b", "hidden 1f1b_alive", "hidden 1f1b_is_as_fast_as_gpipe"},
        "the only micro-batch is 0",
    ),
    Mutant(
        "1F1B warms up for two stages only",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches, 1)",
        {"hidden 1f1b_is_as_fast_as_gpipe"},
        "3 stages, 3 micro-batches, forward passes of length 1 and backward passes of length 1: 1F1B ends at 12, and GPipe ends at 10",
    ),
    Mutant(
        "1F1B goes back with the newest micro-batch",
        "pipeline_parallel",
        """        actions += [("forward", i), ("backward", i - warm_up)]
    return actions + [
        ("backward", i) for i in range(num_micro_batches - warm_up, num_micro_batches)
    ]
""",
        """        actions += [("forward", i), ("backward", i)]
    return actions + [("backward", i) for i in reversed(range(warm_up))]
""",
        {"hidden 1f1b", "hidden 1f1b_is_as_fast_as_gpipe"},
        "the stages do not have the backward passes in the same order",
    ),
    Mutant(
        "stages are counted from the end, as Python's lists allow",
        "pipeline_parallel",
        "    if not 0 <= stage < num_stages:",
        "    if not -num_stages <= stage < num_stages:",
        {"hidden schedules_misuse", "public schedules_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "a schedule of nothing is an empty list",
        "pipeline_parallel",
        "    if num_micro_batches < 1:\n",
        "    if num_micro_batches < 0:\n",
        {"hidden schedules_misuse", "hidden bubble_in_theory", "public schedules_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "an error about stages that does not say which",
        "pipeline_parallel",
        'raise ValueError(f"stage {stage} is not one of {num_stages}")',
        'raise ValueError("no such stage")',
        {"hidden schedules_misuse", "public schedules_misuse"},
        "ValueError does not mention",
    ),
    # ——— 5.5
    Mutant(
        "an activation waits for its receiver, and each gradient for the one before",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        """            if stage < last_stage:
                dist.send(y_i, dst=stage + 1)
            _, received = _exchange(rows, weights[0], receive_from=next_source)
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        {"hidden run_other_legal_schedules", "public run_schedule"},
        DEADLOCK,
    ),
    Mutant(
        "all activations are received at the beginning",
        "pipeline_parallel",
        """    sources = [previous_stage if kind == "forward" else next_stage for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received
""",
        """    if stage > 0:
        x = torch.cat([_receive(rows, weights[0], stage - 1) for _ in range(num_micro_batches)])
    sources = [None if kind == "forward" else next_stage for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows]
""",
        RUN | {"hidden own_timeline"},
        DEADLOCK,
    ),
    Mutant(
        "micro-batches go back in the order in which they came forward",
        "pipeline_parallel",
        "_stage_backward(weights, alive.pop(i), grad_y, totals)",
        "_stage_backward(weights, alive.pop(next(iter(alive))), grad_y, totals)",
        {"hidden run_other_legal_schedules", "public run_schedule"},
        "right only if the backward passes run in the order of the forward passes",
    ),
    Mutant(
        "the micro-batch that came last goes back first",
        "pipeline_parallel",
        "_stage_backward(weights, alive.pop(i), grad_y, totals)",
        "_stage_backward(weights, alive.popitem()[1], grad_y, totals)",
        RUN,
        "right only if the backward passes run in the reverse order of the forward passes",
    ),
    Mutant(
        "this is the loss of only the last micro-batch",
        "pipeline_parallel",
        "                    losses.append(mlp.loss(y_i))\n",
        "                    losses = [mlp.loss(y_i)]\n",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "this is the loss of only the last micro-batch",
    ),
    Mutant(
        "the loss is a number of Python",
        "pipeline_parallel",
        "torch.stack(losses).mean()",
        "torch.stack(losses).mean().item()",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "expected a tensor of shape (), float64, got float",
    ),
    Mutant(
        "the loss is float32, whatever came in",
        "pipeline_parallel",
        "torch.stack(losses).mean()",
        "torch.tensor([loss.item() for loss in losses]).mean()",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "expected dtype float64, got float32",
    ),
    Mutant(
        "the last stage tells all others the loss",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals",
        """    loss = torch.stack(losses).mean() if stage == last_stage else weights[0].new_empty(())
    dist.broadcast(loss, src=last_stage)
    return loss, totals""",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "expected None",
    ),
    Mutant(
        "the loss is divided by the number of stages",
        "pipeline_parallel",
        "grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches",
        "grad_outputs[i] = mlp.loss_backward(y_i) / (last_stage + 1)",
        # This check has three micro-batches, and may draw three stages.
        RUN - {"hidden run_schedule_twice"},
        "the list of the weights' gradients",
    ),
    Mutant(
        "gradients are added to those of the run before",
        "pipeline_parallel",
        """    totals = [torch.zeros_like(weight) for weight in weights]
    losses = []
""",
        """    for weight in weights:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    totals = [weight.grad for weight in weights]
    losses = []
""",
        {"hidden run_schedule_twice"},
        "the second step's gradients were added to the first's",
    ),
    Mutant(
        "a total is kept for each first weight, and each run adds to it",
        "pipeline_parallel",
        """    totals = [torch.zeros_like(weight) for weight in weights]
    losses = []
""",
        """    kept = run_schedule.__dict__.setdefault("totals", {})
    totals = kept.setdefault(weights[0].data_ptr(), [torch.zeros_like(w) for w in weights])
    losses = []
""",
        {"hidden run_schedule_twice"},
        "the second step's gradients were added to the first's, in the same tensors",
    ),
    Mutant(
        "one product for the gradients of all micro-batches",
        "pipeline_parallel",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        LATE_GRADIENTS + """
                        total.addmm_(torch.cat(xs).T, torch.cat(grads))
""",
        {"hidden run_schedule"},
        "rows in one product; a micro-batch has",
    ),
    Mutant(
        "one batched product for the gradients of all micro-batches",
        "pipeline_parallel",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        LATE_GRADIENTS + """
                        total += torch.bmm(torch.stack(xs).mT, torch.stack(grads)).sum(0)
""",
        {"hidden run_schedule"},
        "rows in one product; a micro-batch has",
    ),
    Mutant(
        "a run uses its schedule up",
        "pipeline_parallel",
        """    for (kind, i), next_source in zip(schedule, sources[1:]):
""",
        """    for next_source in sources[1:]:
        kind, i = schedule.pop(0)
""",
        {
            "public run_schedule",
            "hidden run_schedule",
            "hidden run_other_legal_schedules",
            "hidden run_schedule_twice",
        },
        "changed the schedule that it was given",
    ),
    Mutant(
        "gradients that were sent are waited for at the end",
        "pipeline_parallel",
        """            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
            del grad_y, grad_x
    if sending_back is not None:
        sending_back.wait()
""",
        """            sending_back = sending_back or []
            work, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
            sending_back += [work] if work else []
    for send in sending_back or []:
        send.wait()
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "Do you call wait() of every isend (of activations and of gradients) soon after",
    ),
    Mutant(
        "a send is asked whether it is complete, and never waited for",
        "pipeline_parallel",
        "                sending.pop(i).wait()\n",
        """                sending = {j: send for j, send in sending.items() if not send.is_completed()}
""",
        {"hidden run_schedule_frees_what_was_sent", "public run_schedule"},
        "but never waits for it. isend returns immediately",
    ),
    Mutant(
        "the last stage keeps the outputs of all micro-batches",
        "pipeline_parallel",
        "                    losses.append(mlp.loss(y_i))\n",
        """                    losses.append(mlp.loss(y_i))
                    grad_outputs[-1 - i] = y_i
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "Does the stage keep received messages, outputs, gradients, or copies of them longer",
    ),
    Mutant(
        "stage 0 waits for its sends at the end, and keeps the gradients that it has received",
        "pipeline_parallel",
        """            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
            del grad_y, grad_x
""",
        """            if 0 < stage < last_stage:
                sending.pop(i).wait()
            if stage == 0 < last_stage:
                losses.append(grad_y)
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
            del grad_y, grad_x
    for work in sending.values() if stage == 0 < last_stage else ():
        work.wait()
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "Does the stage keep received messages",
    ),
    Mutant(
        "stage 0 computes the gradients of its first weight at the end",
        "pipeline_parallel",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        """                if stage == 0 < last_stage and len(weights) > 1:
                    (x_0, z_0), *rest = alive.pop(i)
                    grad = _stage_backward(weights[1:], rest, grad_y, totals[1:])
                    grad_z = torch.ops.aten.gelu_backward(grad, z_0)
                    grad_x = grad_z @ weights[0].T
                    losses.append((x_0, grad_z))
                    del rest, grad, grad_z, z_0
                    for x_0, grad_z in losses if i == schedule[-1][1] else ():
                        totals[0].addmm_(x_0.T, grad_z)
                else:
                    grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "the memory of rank 0 must not grow with the number of micro-batches: early in a run",
    ),
    Mutant(
        "a copy of each input is kept in half its size",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        """            grad_outputs[-1 - i] = x_i.to(torch.float32, copy=True)
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "copies of them longer than necessary?",
    ),
    Mutant(
        "what is sent and received is kept in arrays of numpy, which the meter does not see",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            if received is not None:
                grad_outputs[-1 - i] = (y_i.numpy().copy(), received.numpy().copy())
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "according to the operating system, the rank's process grew",
    ),
    Mutant(
        "the last stage keeps a quarter of each gradient in an array of numpy",
        "pipeline_parallel",
        """            if sending_back is not None:
                sending_back.wait()
            sending_back, received""",
        """            if stage == last_stage:
                grad_outputs[-1 - i] = grad_x.numpy()[::4].copy()
            if sending_back is not None:
                sending_back.wait()
            sending_back, received""",
        {"hidden run_schedule_frees_what_was_sent"},
        "1F1B: according to the operating system, the rank's process grew",
    ),
    Mutant(
        "backward passes are not recorded",
        "pipeline_parallel",
        "            with timeline.span(kind, i):\n                grad_x =",
        "            if timeline:\n                grad_x =",
        {
            "public run_schedule",
            "hidden run_schedule",
            "hidden run_other_legal_schedules",
            "hidden own_timeline",
        },
        "recorded [('forward', 0)",
    ),
    Mutant(
        "a span that is over before its work begins",
        "pipeline_parallel",
        """            with timeline.span(kind, i):
                grad_x = _stage_backward""",
        """            with timeline.span(kind, i):
                pass
            if timeline:
                grad_x = _stage_backward""",
        {"hidden own_timeline"},
        "products were computed outside of all spans. Record these products, too",
    ),
    Mutant(
        "waiting for a gradient counts as work",
        "pipeline_parallel",
        """    sources = [previous_stage if kind == "forward" else next_stage for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received
            with timeline.span(kind, i):
                y_i, alive[i] = _stage_forward(weights, x_i)
                if stage == last_stage:
                    losses.append(mlp.loss(y_i))
                    grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        """    sources = [previous_stage if kind == "forward" else None for kind, _ in schedule] + [None]
    _, received = _exchange(rows, weights[0], receive_from=sources[0])
    for (kind, i), next_source in zip(schedule, sources[1:]):
        if kind == "forward":
            x_i = x[i * rows : (i + 1) * rows] if stage == 0 else received
            with timeline.span(kind, i):
                y_i, alive[i] = _stage_forward(weights, x_i)
                if stage == last_stage:
                    losses.append(mlp.loss(y_i))
                    grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            with timeline.span(kind, i):
                grad_y = (
                    grad_outputs.pop(i)
                    if stage == last_stage
                    else _receive(rows, weights[0], stage + 1)
                )
                if stage < last_stage:
                    sending.pop(i).wait()
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        {"hidden own_timeline"},
        "span of ('backward', 0) begins before stage",
    ),
    Mutant(
        "messages are exchanged inside the spans",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
""",
        """                sending[i], received = _exchange(
                    rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
                )
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else received
            if stage < last_stage:
                # returns at once: the sender of the gradient has received the activation
                sending.pop(i).wait()
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
                if sending_back is not None:
                    sending_back.wait()
                sending_back, received = _exchange(
                    rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
                )
""",
        {"hidden own_timeline"},
        "waited inside its span of",
    ),
    Mutant(
        "a span of a forward pass lasts until the next message has come",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
""",
        """                sending[i], received = _exchange(
                    rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
                )
        else:
""",
        {"hidden own_timeline"},
        "stage 1 waited inside its span of ('forward', 0)",
    ),
    Mutant(
        "a span of a backward pass lasts until the next message has come",
        "pipeline_parallel",
        """            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
""",
        """                if sending_back is not None:
                    sending_back.wait()
                sending_back, received = _exchange(
                    rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
                )
""",
        {"hidden own_timeline"},
        "stage 2 waited inside its span of ('backward', 0)",
    ),
    Mutant(
        "a gradient is sent inside the span, and the span lasts until it is received",
        "pipeline_parallel",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
""",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
                if stage == last_stage > 0:
                    sending_back, received = _exchange(
                        rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=None
                    )
                    sending_back.wait()
            if stage == last_stage > 0:
                _, received = _exchange(rows, weights[0], receive_from=next_source)
                sending_back = None
                continue
            if sending_back is not None:
                sending_back.wait()
            sending_back, received = _exchange(
                rows, weights[0], outgoing=grad_x, send_to=previous_stage, receive_from=next_source
            )
""",
        {"hidden own_timeline"},
        "stage 2 waited inside its span of ('backward', 0)",
    ),
    Mutant(
        "a list of the right length is a schedule",
        "pipeline_parallel",
        "    if sorted(schedule) != sorted(expected):\n",
        "    if len(schedule) != len(expected):\n",
        {"hidden run_schedule_misuse", "public run_schedule_misuse"},
        "('backward', 1), ('backward', 1)",
    ),
    Mutant(
        "a pass that is there twice goes unnoticed",
        "pipeline_parallel",
        "    if sorted(schedule) != sorted(expected):\n",
        "    if set(schedule) != set(expected):\n",
        {"hidden run_schedule_misuse", "public run_schedule_misuse"},
        "('forward', 0)] of",
    ),
    Mutant(
        "layers beyond the thirteenth are lost",
        "pipeline_parallel",
        "    each, remainder = divmod(num_layers, num_stages)\n",
        """    each, remainder = divmod(num_layers, num_stages)
    if num_layers > 13:
        remainder = 0
""",
        {"hidden split_layers"},
        "split_layers(14, 3): expected",
    ),
    Mutant(
        "1F1B is GPipe for numbers of micro-batches and stages that are seldom asked for",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)\n",
        """    warm_up = min(num_stages - stage - 1, num_micro_batches)
    if num_micro_batches in (5, 7, 8, 10, 12) and num_stages < 5:
        return gpipe_schedule(stage, num_stages, num_micro_batches)
""",
        {"hidden 1f1b_alive"},
        "micro-batches are alive after",
    ),
    Mutant(
        "the bubble from a table of some numbers",
        "pipeline_parallel",
        "    return (num_stages - 1) / (num_micro_batches + num_stages - 1)\n",
        """    if num_stages not in (1, 2, 3, 4, 8) or num_micro_batches not in (1, 2, 4, 5, 8, 64):
        return 0.5
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)
""",
        {"hidden bubble_in_theory"},
        "the list of fractions is wrong",
    ),
    # ——— 5.6
    Mutant(
        "the bubble of no stage is a number",
        "pipeline_parallel",
        """    if num_stages < 1:
        raise ValueError(f"there must be at least one stage, not {num_stages}")
    _check_micro_batches(num_micro_batches)
    return (num_stages - 1)""",
        "    return (num_stages - 1)",
        {"hidden bubble_in_theory", "public bubble_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "a fraction without its remainder",
        "pipeline_parallel",
        "return (num_stages - 1) / (num_micro_batches + num_stages - 1)",
        "return (num_stages - 1) // (num_micro_batches + num_stages - 1)",
        {"public bubble", "hidden bubble_in_theory"},
        "expected 0.428571, got 0",
    ),
    Mutant(
        "the clock is thought to begin at zero",
        "pipeline_parallel",
        "    total = max(span.end for span in spans) - min(span.start for span in spans)\n",
        "    total = max(span.end for span in spans)\n",
        {"public bubble", "hidden bubble_measured"},
        "the total time was counted from 0, but the earliest span starts at",
    ),
    Mutant(
        "spans are thought to be in order",
        "pipeline_parallel",
        "    total = max(span.end for span in spans) - min(span.start for span in spans)\n",
        "    total = spans[-1].end - spans[0].start\n",
        {"hidden bubble_measured"},
        "this is right only if the spans come in the order of time",
    ),
    Mutant(
        "a stage that records nothing is not counted",
        "pipeline_parallel",
        "/ (len(timelines) * total)",
        "/ (sum(1 for timeline in timelines if timeline) * total)",
        {"hidden bubble_measured"},
        "a stage without spans was left out",
    ),
    Mutant(
        "where nobody recorded anything nobody waited",
        "pipeline_parallel",
        '        raise ValueError(f"none of {len(timelines)} timelines holds a span")\n',
        "        return 0.0\n",
        {"hidden bubble_measured", "public bubble_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "backward through a stage's layers from the first to the last",
        "pipeline_parallel",
        "zip(reversed(weights), reversed(saved), reversed(totals))",
        "zip(weights, saved, totals)",
        BACKWARD | RUN,
        "It must begin with the last",
    ),
    Mutant(
        "every layer gets the gradient of the stage's output",
        "pipeline_parallel",
        "        grad_y = grad_z @ weight.T\n    return grad_y\n",
        "        grad_x = grad_z @ weight.T\n    return grad_x\n",
        BACKWARD | RUN,
        "every layer of a stage got the gradient of the stage's output",
    ),
    Mutant(
        "back through a layer by W, not by its transpose",
        "pipeline_parallel",
        "        grad_y = grad_z @ weight.T",
        "        grad_y = grad_z @ weight",
        BACKWARD | RUN,
        "Multiply it by the transpose of W",
    ),
    Mutant(
        "gelu's derivative is left out",
        "pipeline_parallel",
        "        grad_z = torch.ops.aten.gelu_backward(grad_y, z)",
        "        grad_z = grad_y",
        BACKWARD | RUN,
        "gelu's derivative was left out",
    ),
    Mutant(
        "x and z in each other's place",
        "pipeline_parallel",
        "    for weight, (x, z), total in zip(",
        "    for weight, (z, x), total in zip(",
        BACKWARD | RUN,
        "x and z are swapped",
    ),
    Mutant(
        "the backward pass begins with y",
        "pipeline_parallel",
        "    grad_loss = mlp.loss_backward(y) if stage == last_stage else None",
        "    grad_loss = y if stage == last_stage else None",
        BACKWARD,
        "the last stage began its backward pass with the gradient y. The gradient of the mean of y²",
    ),
    Mutant(
        "the gradients of a stage in the order of the backward pass",
        "pipeline_parallel",
        "    return totals\n    # END SOLUTION",
        "    return totals[::-1]\n    # END SOLUTION",
        BACKWARD,
        "in reverse order. The list must begin with the stage's first layer",
    ),
    Mutant(
        "the list of weights is emptied",
        "pipeline_parallel",
        "    return torch.cat(outputs) if stage == last_stage else None, saved",
        """    weights.clear()
    return torch.cat(outputs) if stage == last_stage else None, saved""",
        {"public forward", "hidden forward"},
        "changed a list that it was given",
    ),
    Mutant(
        "every step adds up in the same memory",
        "pipeline_parallel",
        """    totals = [torch.zeros_like(weight) for weight in weights]
    losses = []""",
        """    key = (weights[0].dtype, weights[0].shape, len(weights))
    totals = run_schedule.__dict__.setdefault(key, [torch.zeros_like(weight) for weight in weights])
    for total in totals:
        total.zero_()
    losses = []""",
        {"hidden run_schedule_twice"},
        "these gradients were overwritten by those of a later step",
    ),
    # ——— at the edges: one row, three layers, layouts, many stages, one micro-batch too many
    Mutant(
        "a micro-batch of one row loses its dimension",
        "pipeline_parallel",
        """        x_i = x[i * rows : (i + 1) * rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i""",
        """        x_i = x[i * rows : (i + 1) * rows].squeeze(0) if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i""",
        {"hidden forward", "hidden forward_saves"},
        "expected shape (1, 6), got (6,)",
    ),
    Mutant(
        "the columns and rows of a product of one row are lost",
        "pipeline_parallel",
        "        total.addmm_(x.T, grad_z)",
        "        total += x.squeeze().T @ grad_z.squeeze()",
        {"hidden backward", "hidden run_schedule"},
        "the list of the weights' gradients",
    ),
    Mutant(
        "a stage has two layers at most",
        "pipeline_parallel",
        "    for weight in weights:\n        y, z = mlp",
        "    for weight in weights[:2]:\n        y, z = mlp",
        {"hidden forward", "hidden forward_saves", "hidden forward_flows", "hidden run_schedule"}
        | FREES,
        "got a list of length 2",
    ),
    Mutant(
        "from the third layer on, the input of the second is saved",
        "pipeline_parallel",
        "        saved.append((x, z))\n",
        "        saved.append((x if len(saved) < 2 else saved[1][0], z))\n",
        {"hidden forward_saves", "hidden run_schedule"} | FREES,
        "this value belongs at element [0][1][0]. Is the order right?",
    ),
    Mutant(
        "the input of the third layer is sent on",
        "pipeline_parallel",
        "            sends.append(dist.isend(y_i, dst=stage + 1))",
        "            sends.append(dist.isend(saved_i[2][0] if len(saved_i) > 2 else y_i, dst=stage + 1))",
        {"hidden forward", "hidden forward_saves", "hidden forward_flows"},
        "the output is wrong on rank 1",
    ),
    Mutant(
        "back through the last layer of a stage, then through the others from the first on",
        "pipeline_parallel",
        "zip(reversed(weights), reversed(saved), reversed(totals))",
        "zip(*([of[-1], *of[:-1]] for of in (weights, saved, totals)))",
        {"hidden backward", "hidden backward_flows", "hidden run_schedule"} | FREES,
        "the list of the weights' gradients",
    ),
    Mutant(
        "1F1B warms up for seven stages at most",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches, 6)",
        {"hidden 1f1b_is_as_fast_as_gpipe"},
        "10 stages, 10 micro-batches, forward passes of length 1 and backward passes of length 1: 1F1B ends at",
    ),
    Mutant(
        "1F1B cools down in the order of the alphabet",
        "pipeline_parallel",
        """        ("backward", i) for i in range(num_micro_batches - warm_up, num_micro_batches)
""",
        """        ("backward", i)
        for i in sorted(range(num_micro_batches - warm_up, num_micro_batches), key=str)
""",
        {"hidden 1f1b", "hidden 1f1b_is_as_fast_as_gpipe"},
        "3 stages, 11 micro-batches: the stages do not have the backward passes in the same order",
    ),
    Mutant(
        "a variable names what the micro-batch before has saved",
        "pipeline_parallel",
        "                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)",
        """                saved = alive.pop(i)
                grad_x = _stage_backward(weights, saved, grad_y, totals)""",
        {"hidden run_schedule_frees"},
        "Does a variable still hold the saved tensors of an earlier micro-batch?",
    ),
    Mutant(
        "a variable names what the newest micro-batch has saved",
        "pipeline_parallel",
        "                y_i, alive[i] = _stage_forward(weights, x_i)",
        """                y_i, saved = _stage_forward(weights, x_i)
                alive[i] = saved""",
        {"hidden run_schedule_frees"},
        "1F1B: ",
    ),
    Mutant(
        "the loss is computed after the span",
        "pipeline_parallel",
        """                if stage == last_stage:
                    losses.append(mlp.loss(y_i))
                    grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
""",
        """            if stage == last_stage:
                losses.append(mlp.loss(y_i))
                grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
""",
        {"hidden own_timeline", "public run_schedule_records_the_loss"},
        "Compute the loss and its gradient inside a span: they are work, too.",
    ),
    Mutant(
        "the gradient of the loss is computed before the span",
        "pipeline_parallel",
        """                    grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            grad_y = grad_outputs.pop(i) if""",
        """                    grad_outputs[i] = y_i
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            del x_i, y_i  # from now on only ``alive`` and the send keep them
        else:
            if stage == last_stage:
                grad_outputs[i] = mlp.loss_backward(grad_outputs[i]) / num_micro_batches
            grad_y = grad_outputs.pop(i) if""",
        {"hidden own_timeline"},
        "Compute the loss and its gradient inside a span: they are work, too.",
    ),
    Mutant(
        "sends of the backward pass are never waited for",
        "pipeline_parallel",
        "    for send in sends:\n        send.wait()\n    return totals",
        "    return totals",
        BACKWARD,
        "but never waits for it. isend returns immediately",
    ),
    Mutant(
        "every gradient is added twice",
        "pipeline_parallel",
        "        total.addmm_(x.T, grad_z)",
        "        total.addmm_(x.T, grad_z, alpha=2)",
        BACKWARD | RUN,
        "twice the right gradients",
    ),
    Mutant(
        "a schedule from a cache",
        "pipeline_parallel",
        """    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
""",
        """    cache = vars(gpipe_schedule).setdefault('cache', {})
    made = [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
    return cache.setdefault((stage, num_stages, num_micro_batches), made)
""",
        {"hidden gpipe"},
        "Make a new list in each call",
    ),
    Mutant(
        "1F1B by recursion",
        "pipeline_parallel",
        """    actions = [("forward", i) for i in range(warm_up)]
    for i in range(warm_up, num_micro_batches):
        actions += [("forward", i), ("backward", i - warm_up)]
    return actions + [
        ("backward", i) for i in range(num_micro_batches - warm_up, num_micro_batches)
    ]
""",
        """
    def rest(f, b):
        if b == num_micro_batches:
            return []
        if f < num_micro_batches and f - b <= warm_up:
            return [("forward", f), *rest(f + 1, b)]
        return [("backward", b), *rest(f, b + 1)]

    return rest(0, 0)
""",
        {"hidden 1f1b"},
        "RecursionError",
    ),
    Mutant(
        "a window of sends",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
            for j in list(sending)[: max(0, len(sending) - (last_stage - stage + 1))]:
                if sending[j]:
                    sending[j].wait()
""",
        {"hidden run_other_legal_schedules", "public run_schedule"},
        "Deadlock",
    ),
    Mutant(
        "the spans are sorted in place",
        "pipeline_parallel",
        """    spans = [span for timeline in timelines for span in timeline]
    if not spans:""",
        """    for timeline in timelines:
        timeline.sort(key=lambda span: span.start)
    spans = [span for timeline in timelines for span in timeline]
    if not spans:""",
        {"hidden bubble_measured"},
        "If you sort, sort a copy",
    ),
    Mutant(
        "what an action sends and what the next receives, one after the other",
        "pipeline_parallel",
        """    works = dist.batch_isend_irecv(messages) if messages else []
""",
        """    works = [message.op(message.tensor, message.peer) for message in messages]
""",
        IN_ORDER,
        "Start both with one dist.batch_isend_irecv",
    ),
    Mutant(
        "what is sent and received together is waited for together",
        "pipeline_parallel",
        """    if receive_from is not None:
        works[-1].wait()  # the work of the receive; with nccl, of both messages
    return works[0] if send_to is not None else None, received
""",
        """    for work in works:
        work.wait()
    ended = torch.futures.Future()
    ended.set_result(None)
    return ended if send_to is not None else None, received
""",
        {"hidden run_other_legal_schedules"},
        "Deadlock",
    ),
    Mutant(
        "what micro-batches have saved is kept, except on 2 and 3 stages",
        "pipeline_parallel",
        "                y_i, alive[i] = _stage_forward(weights, x_i)\n",
        """                y_i, alive[i] = _stage_forward(weights, x_i)
                if last_stage not in (1, 2):
                    grad_outputs[-1 - i] = alive[i]
""",
        {"hidden run_schedule_frees", "hidden run_schedule_frees_what_was_sent"},
        "1F1B",
    ),
    Mutant(
        "what micro-batches have saved is kept on 2 stages",
        "pipeline_parallel",
        "                y_i, alive[i] = _stage_forward(weights, x_i)\n",
        """                y_i, alive[i] = _stage_forward(weights, x_i)
                if last_stage == 1:
                    grad_outputs[-1 - i] = alive[i]
""",
        {"hidden run_schedule_frees", "hidden run_schedule_frees_what_was_sent"},
        "1F1B",
    ),
    Mutant(
        "each span lasts until the next one, except on 3 stages",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals\n",
        """    spans = timeline.spans
    for k in range(len(spans) - 1 if last_stage != 2 else 0):
        spans[k] = spans[k]._replace(end=spans[k + 1].start)
    return torch.stack(losses).mean() if stage == last_stage else None, totals
""",
        {"hidden own_timeline"},
        "waited inside its span of",
    ),
    Mutant(
        "the last stage goes back in the spans of its forward passes",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals\n",
        """    spans = timeline.spans
    for k in range(len(spans) - 1):
        if stage == last_stage and spans[k].kind != spans[k + 1].kind == "backward":
            spans[k] = spans[k]._replace(end=spans[k + 1].end)
            spans[k + 1] = spans[k + 1]._replace(start=spans[k + 1].end)
    return torch.stack(losses).mean() if stage == last_stage else None, totals
""",
        {"hidden own_timeline"},
        "computed no matrix product during its span of backward 0",
    ),
    Mutant(
        "the last stage computes each micro-batch twice",
        "pipeline_parallel",
        """        y_i, saved_i = _stage_forward(weights, x_i)
        saved.append(saved_i)
""",
        """        y_i, saved_i = _stage_forward(weights, x_i)
        if stage == last_stage:
            y_i, saved_i = _stage_forward(weights, x_i)
        saved.append(saved_i)
""",
        {"hidden forward_flows"},
        "2.0 times as many products as its micro-batches need",
    ),
    Mutant(
        "the loss is computed once more, outside of the spans, as a product of vectors",
        "pipeline_parallel",
        "            del x_i, y_i  # from now on only ``alive`` and the send keep them\n",
        """            if stage == last_stage:
                y_i.flatten() @ y_i.flatten() / y_i.numel()
            del x_i, y_i  # from now on only ``alive`` and the send keep them
""",
        {"public run_schedule_records_the_loss", "hidden own_timeline"},
        "times outside of all spans",
    ),
    Mutant(
        "the loss lies in memory that the next step uses",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals\n",
        '    if stage < last_stage:\n        return None, totals\n    loss = torch.stack(losses).mean()\n    kept = mlp.__dict__.setdefault("kept", {})\n    return kept.setdefault(loss.dtype, torch.empty_like(loss)).copy_(loss), totals\n',
        {"hidden run_schedule_twice"},
        "this loss was overwritten",
    ),
    Mutant(
        "split_layers returns the list of an earlier call",
        "pipeline_parallel",
        "    return [range(first, end) for first, end in zip(bounds, bounds[1:])]\n",
        '    kept = mlp.__dict__.setdefault("kept", {})\n    made = [range(first, end) for first, end in zip(bounds, bounds[1:])]\n    return kept.setdefault((num_layers, num_stages), made)\n',
        {"hidden split_layers"},
        "Make a new list in each call",
    ),
    Mutant(
        "one stage takes batches that m does not divide",
        "pipeline_parallel",
        "    rows = _micro_batch_rows(batch_size, num_micro_batches)\n    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1\n    outputs = []\n",
        "    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1\n    if last_stage == 0 and num_micro_batches > 0:\n        rows = -(-batch_size // num_micro_batches)\n    else:\n        rows = _micro_batch_rows(batch_size, num_micro_batches)\n    outputs = []\n",
        {"hidden forward_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "one stage runs any schedule",
        "pipeline_parallel",
        "    _check_schedule(schedule, num_micro_batches)\n    stage, last",
        "    if dist.get_world_size() > 1:\n        _check_schedule(schedule, num_micro_batches)\n    stage, last",
        {"hidden run_schedule_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "the bubble of one stage has any number of micro-batches",
        "pipeline_parallel",
        "    _check_micro_batches(num_micro_batches)\n    return (num_stages - 1) /",
        "    if num_stages == 1:\n        return 0.0\n    _check_micro_batches(num_micro_batches)\n    return (num_stages - 1) /",
        {"hidden bubble_in_theory"},
        "expected a ValueError",
    ),
    Mutant(
        "a send is awaited inside the next backward span",
        "pipeline_parallel",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if sending_back is not None:
                sending_back.wait()
""",
        """                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
                if sending_back is not None:
                    sending_back.wait()
""",
        {"hidden own_timeline"},
        "Leave the span before you receive or wait",
    ),
    Mutant(
        "all tensors to receive into are made at the start",
        "pipeline_parallel",
        "    _, received = _exchange(rows, weights[0], receive_from=sources[0])\n",
        """    buffers = [_empty_rows(rows, weights[0]) for source in sources if source is not None]

    def _exchange(rows, like, *, receive_from, outgoing=None, send_to=None):
        messages = [dist.P2POp(dist.isend, outgoing, send_to)] if send_to is not None else []
        received = buffers.pop() if receive_from is not None else None
        if received is not None:
            messages.append(dist.P2POp(dist.irecv, received, receive_from))
        works = dist.batch_isend_irecv(messages) if messages else []
        if received is not None:
            works[-1].wait()
        return works[0] if send_to is not None else None, received

    _, received = _exchange(rows, weights[0], receive_from=sources[0])
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "Does your code allocate memory for all micro-batches at the start",
    ),
    Mutant(
        "the bubble of m + n time slots",
        "pipeline_parallel",
        "(num_stages - 1) / (num_micro_batches + num_stages - 1)",
        "(num_stages - 1) / (num_micro_batches + num_stages)",
        {"public bubble", "hidden bubble_in_theory"},
        "need m + n − 1 time slots",
    ),
    Mutant(
        "one timeline without spans has no bubble",
        "pipeline_parallel",
        '    if not spans:\n        raise ValueError(f"none of',
        '    if len(timelines) == 1 and not spans:\n        return 0.0\n    if not spans:\n        raise ValueError(f"none of',
        {"hidden bubble_measured"},
        "expected a ValueError",
    ),
    Mutant(
        "one stage records nothing",
        "pipeline_parallel",
        "            with timeline.span(kind, i):\n                y_i, alive[i] = _stage_forward(weights, x_i)\n",
        "            if last_stage == 0:\n                timeline = Timeline()\n            with timeline.span(kind, i):\n                y_i, alive[i] = _stage_forward(weights, x_i)\n",
        {"hidden own_timeline"},
        "stage 0 recorded []",
    ),
    Mutant(
        "only backward passes are counted",
        "pipeline_parallel",
        "    if sorted(schedule) != sorted(expected):\n",
        """    backward = sorted(i for kind, i in schedule if kind == "backward")
    if len(schedule) != len(expected) or backward != list(range(num_micro_batches)):
""",
        {"hidden run_schedule_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "only five micro-batches are sent one by one",
        "pipeline_parallel",
        START_OF_FORWARD,
        """    if num_micro_batches != 5:
        if stage > 0:
            x = _receive(batch_size, weights[0], stage - 1)
        y, whole = _stage_forward(weights, x)
        saved = [list(zip(*(t.split(rows) for t in pair))) for pair in whole]
        saved = [[pairs[i] for pairs in saved] for i in range(num_micro_batches)]
        if stage < last_stage:
            dist.send(y, stage + 1)
        return (y if stage == last_stage else None), saved
""" + START_OF_FORWARD,
        {"hidden forward", "hidden forward_flows"},
        "It has to send",
    ),
    Mutant(
        "only four or five gradients are sent one by one",
        "pipeline_parallel",
        START_OF_BACKWARD,
        """    if len(saved) not in (4, 5):
        grad_y = grad_loss
        if stage < last_stage:
            grad_y = _receive(rows * len(saved), weights[0], stage + 1)
        layers = zip(*saved)
        whole = [tuple(map(torch.cat, zip(*of_layer))) for of_layer in layers]
        grad_x = _stage_backward(weights, whole, grad_y, totals)
        if stage > 0:
            dist.send(grad_x, stage - 1)
        return totals
""" + START_OF_BACKWARD,
        {"hidden backward", "hidden backward_flows"},
        "It has to send",
    ),
    Mutant(
        "1F1B is GPipe in a world of more than two ranks",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)\n",
        """    if dist.is_initialized() and dist.get_world_size() > 2:
        return gpipe_schedule(stage, num_stages, num_micro_batches)
    warm_up = min(num_stages - stage - 1, num_micro_batches)
""",
        {"hidden 1f1b", "hidden 1f1b_alive", "hidden 1f1b_is_as_fast_as_gpipe"},
        "A schedule may depend only on the arguments.",
    ),
    Mutant(
        "1F1B is GPipe for more than sixteen stages",
        "pipeline_parallel",
        "    warm_up = min(num_stages - stage - 1, num_micro_batches)\n",
        """    if num_stages > 16 or num_stages > 2 and num_micro_batches > 39:
        return gpipe_schedule(stage, num_stages, num_micro_batches)
    warm_up = min(num_stages - stage - 1, num_micro_batches)
""",
        {"hidden 1f1b_alive"},
        "micro-batches are alive after",
    ),
    Mutant(
        "split_layers returns the list of an earlier call, except for one cut",
        "pipeline_parallel",
        "def split_layers(",
        """def _kept_cuts(function):
    cuts = {}

    def kept(*numbers):
        if numbers == (5, 3) or numbers not in cuts:
            cuts[numbers] = function(*numbers)
        return cuts[numbers]

    return kept


@_kept_cuts
def split_layers(""",
        {"hidden split_layers"},
        "Make a new list in each call",
    ),
    Mutant(
        "only two layers are too few for more stages",
        "pipeline_parallel",
        "    if not 1 <= num_stages <= num_layers:",
        "    if num_stages < 1 or num_layers < min(3, num_stages):",
        {"hidden split_layers_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "an error about stages has the same numbers every time",
        "pipeline_parallel",
        """        raise ValueError(f"stage {stage} is not one of {num_stages}")""",
        """        raise ValueError("one of the stages 2, 7, -1, 0 and 1 does not exist")""",
        {"hidden schedules_misuse"},
        "ValueError does not mention",
    ),
    Mutant(
        "four stages take any number of micro-batches",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        """    if dist.get_world_size() == 4:
        return batch_size // (num_micro_batches or 1)
    if num_micro_batches < 1 or batch_size % num_micro_batches:""",
        {"hidden forward_misuse", "hidden run_schedule_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "only schedules of two or three micro-batches are looked at",
        "pipeline_parallel",
        "    if sorted(schedule) != sorted(expected):\n",
        "    if num_micro_batches in (2, 3) and sorted(schedule) != sorted(expected):\n",
        {"hidden run_schedule_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "of each stage's spans, only the first two and the last one are looked at",
        "pipeline_parallel",
        "    total = max(span.end for span in spans) - min(span.start for span in spans)\n",
        """    ends = [span for own in timelines if own for span in (own[0], own[-1])]
    starts = [span for own in timelines for span in own[:2]]
    total = max(span.end for span in ends) - min(span.start for span in starts)
""",
        {"hidden bubble_measured"},
        "the bubble of the spans",
    ),
    Mutant(
        "other schedules than GPipe and 1F1B run only with three or four micro-batches",
        "pipeline_parallel",
        "    _check_schedule(schedule, num_micro_batches)\n    stage, last_stage",
        """    _check_schedule(schedule, num_micro_batches)
    if num_micro_batches not in (3, 4):
        own = dist.get_rank(), dist.get_world_size(), num_micro_batches
        known = [make(*own) for make in (gpipe_schedule, one_forward_one_backward_schedule)]
        kinds = [[kind for kind, _ in actions] for actions in [schedule, *known]]
        if kinds[0] not in kinds[1:]:
            raise RuntimeError(f"an unknown schedule: {schedule}")
    stage, last_stage""",
        {"hidden run_other_legal_schedules"},
        "raised RuntimeError: an unknown schedule",
    ),
    Mutant(
        "what is sent and received starts together only with some numbers of micro-batches",
        "pipeline_parallel",
        "    sending_back: dist.Work | None = None  # the last send to the previous stage\n",
        """    sending_back: dist.Work | None = None  # the last send to the previous stage

    def apart(rows, like, *, outgoing=None, send_to=None, receive_from):
        send = dist.isend(outgoing, send_to) if send_to is not None else None
        received = None
        if receive_from is not None:
            received = _empty_rows(rows, like)
            dist.irecv(received, receive_from).wait()
        return send, received

    together = (last_stage + 1, num_micro_batches) in ((2, 3), (3, 5), (4, 6))
    _exchange = globals()["_exchange"] if together else apart
""",
        {"hidden run_schedule_in_the_order_of_gpus"},
        "Start both with one dist.batch_isend_irecv",
    ),
    Mutant(
        "stage 0 of more than two stages starts its sends when it has to receive",
        "pipeline_parallel",
        """            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        """            if stage == 0 and last_stage > 1 and next_source is None:
                grad_outputs[i] = y_i
                continue
            for j in list(grad_outputs) if stage < last_stage else ():
                sending[j] = dist.isend(grad_outputs.pop(j), next_stage)
            sending[i], received = _exchange(
                rows, weights[0], outgoing=y_i, send_to=next_stage, receive_from=next_source
            )
""",
        {"hidden own_timeline"},
        "before it had started to send the result of",
    ),
    Mutant(
        "what a run is given in float32 is kept",
        "pipeline_parallel",
        """                y_i, alive[i] = _stage_forward(weights, x_i)
""",
        """                y_i, alive[i] = _stage_forward(weights, x_i)
                if y_i.dtype == torch.float32:
                    sources.append(alive[i])
""",
        {"hidden run_schedule_frees", "hidden run_schedule_frees_what_was_sent"},
        "1F1B",
    ),
    Mutant(
        "with more than six micro-batches, spans of more than two stages are empty",
        "pipeline_parallel",
        """            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        """            with timeline.span(kind, i):
                if last_stage < 2 or num_micro_batches < 7:
                    grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if last_stage > 1 and num_micro_batches > 6:
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
""",
        {"hidden own_timeline"},
        "products were computed outside of all spans",
    ),
    Mutant(
        "a backward pass with the same tensors returns the gradients of the first",
        "pipeline_parallel",
        "def pipeline_backward(",
        """def _remembered(function):
    calls = []

    def remembered(weights, saved, y):
        own = [y, *weights, *(t for of in saved for pair in of for t in pair)]
        for seen, result in calls:
            if len(seen) == len(own) and all(a is b for a, b in zip(seen, own)):
                return [gradient.clone() for gradient in result]
        result = function(weights, saved, y)
        calls.append((own, [gradient.clone() for gradient in result]))
        return result

    return remembered


@_remembered
def pipeline_backward(""",
        {"hidden backward_twice"},
        "so compute every result anew",
    ),
    Mutant(
        "every step adds up in the same memory, except with three micro-batches",
        "pipeline_parallel",
        "    totals = [torch.zeros_like(weight) for weight in weights]\n    losses = []",
        """    key = num_micro_batches, len(weights), weights[0].shape, weights[0].dtype
    kept = run_schedule.__dict__
    if num_micro_batches == 3 or key not in kept:
        kept[key] = [torch.zeros_like(weight) for weight in weights]
    totals = [total.zero_() for total in kept[key]]
    losses = []""",
        {"hidden run_schedule_twice"},
        "these gradients were overwritten by those of a later step",
    ),
    Mutant(
        "a stage has five layers at most",
        "pipeline_parallel",
        "    for weight in weights:\n        y, z = mlp",
        "    for weight in weights[:5]:\n        y, z = mlp",
        {"hidden forward", "hidden forward_saves", "hidden run_schedule"},
        "the output is wrong",
    ),
    Mutant(
        "every pass that is not forward is backward",
        "pipeline_parallel",
        "    if sorted(schedule) != sorted(expected):\n",
        "    if sorted((k if k == 'forward' else 'backward', i) for k, i in schedule) != sorted(expected):\n",
        {"hidden run_schedule_misuse"},
        "expected a ValueError",
    ),
]
