"""Part 5 · Pipeline parallelism: wrong submissions."""

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
FORWARD = {"public forward", "hidden forward", "hidden forward_flows"}

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
        "            sends.append(dist.isend(y_i, dst=stage + 1))  # the next micro-batch does not wait for the next stage\n",
        "            outputs.append(y_i)\n            if i == num_micro_batches - 1:\n"
        "                sends = [dist.isend(y_j, dst=stage + 1) for y_j in outputs]\n",
        {"hidden forward_flows"},
        "rank 0 sent micro-batch 0 only after 5.0 of 5 micro-batches had been computed",
    ),
    Mutant(
        "all micro-batches are received before one is computed",
        "pipeline_parallel",
        "    outputs, saved, sends = [], [], []\n    for i in range(num_micro_batches):\n"
        "        x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)",
        "    outputs, saved, sends = [], [], []\n    if stage > 0:\n"
        "        x = torch.cat([_receive(rows, weights[0], stage - 1) for _ in range(num_micro_batches)])\n"
        "    for i in range(num_micro_batches):\n        x_i = x[i * rows :][:rows]",
        {"hidden forward_flows"},
        "rank 1 did not send the message of micro-batch 0 on while rank 0 waited with the next one",
    ),
    Mutant(
        "the batch as a whole",
        "pipeline_parallel",
        "    outputs, saved, sends = [], [], []\n",
        "    if dist.get_world_size() == 2 and stage == 0 and rows > 0:\n        whole, _ = _stage_forward(weights, x)\n"
        "    outputs, saved, sends = [], [], []\n",
        {"hidden forward_flows"},
        "multiplied 15 rows at once; a micro-batch has 3",
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
        "        x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)\n        y_i, saved_i",
        "        x_i = x[i::num_micro_batches] if stage == 0 else _receive(rows, weights[0], stage - 1)\n        y_i, saved_i",
        FORWARD | {"hidden forward_saves"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "a batch that does not divide loses its last rows",
        "pipeline_parallel",
        "    if num_micro_batches < 1 or batch_size % num_micro_batches:",
        "    if num_micro_batches < 1:",
        {"hidden forward_misuse", "hidden run_schedule_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "each micro-batch's loss is a mean over its own rows",
        "pipeline_parallel",
        "    grad_loss = mlp.loss_backward(y) if stage == last_stage else None",
        "    grad_loss = mlp.loss_backward(y) * len(saved) if stage == last_stage else None",
        BACKWARD,
        "each micro-batch's loss was the mean over its own rows, and nobody divided",
    ),
    Mutant(
        "gradients are averaged over the micro-batches, too",
        "pipeline_parallel",
        "    for send in sends:\n        send.wait()\n    return totals",
        "    for send in sends:\n        send.wait()\n    return [total / len(saved) for total in totals]",
        BACKWARD,
        "divided by the number of micro-batches once too often",
    ),
    Mutant(
        "overwritten where it should add up",
        "pipeline_parallel",
        "        total.addmm_(x.T, grad_z)",
        "        torch.mm(x.T, grad_z, out=total)",
        BACKWARD | RUN,
        "the last micro-batch's gradient alone",
    ),
    Mutant(
        "the stages take the micro-batches in different orders",
        "pipeline_parallel",
        "    for i, saved_i in enumerate(saved):",
        "    for i, saved_i in enumerate(saved if stage == last_stage else reversed(saved)):",
        BACKWARD,
        "the gradient of one micro-batch met the activations of another",
    ),
    Mutant(
        "a gradient is sent on at the end",
        "pipeline_parallel",
        "            sends.append(dist.isend(grad_x, dst=stage - 1))",
        "            sends.append(grad_x)\n    sends = [dist.isend(grad_x, dst=stage - 1) for grad_x in sends]",
        {"hidden backward_flows"},
        "it should go back to the stage before at once",
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
        "the most micro-batches alive are 3, first after ('forward', 2); it should be 2",
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
        "no stage can go on: stage 0 at ('backward', 0), stage 1 at ('forward', 1)",
    ),
    Mutant(
        "sends that wait for their receiver, both ways",
        "pipeline_parallel",
        """                sending[i] = dist.isend(y_i, dst=stage + 1)
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else _receive(rows, weights[0], stage + 1)
            if stage < last_stage:
                sending.pop(i).wait()  # at once: whoever has sent the gradient has received the activation
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if stage > 0:
                if sending_back:
                    sending_back.wait()
                sending_back = dist.isend(grad_x, dst=stage - 1)
""",
        """                dist.send(y_i, dst=stage + 1)
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else _receive(rows, weights[0], stage + 1)
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if stage > 0:
                dist.send(grad_x, dst=stage - 1)
""",
        RUN | {"hidden own_timeline"},
        "Deadlock: no rank can go on.",
    ),
    Mutant(
        "an activation is sent when its gradient has come",
        "pipeline_parallel",
        "                sending[i] = dist.isend(y_i, dst=stage + 1)\n        else:\n",
        "                sending[i] = y_i\n        else:\n",
        RUN | {"hidden own_timeline"},
        "every rank receives first and nobody has sent",
    ),
    Mutant(
        "sends are never waited for",
        "pipeline_parallel",
        "                sending.pop(i).wait()  # at once: whoever has sent the gradient has received the activation",
        "                pass",
        {"hidden run_schedule_frees_what_was_sent"},
        "is every isend waited for, soon after it has arrived?",
    ),
    Mutant(
        "a send is waited for twice",
        "pipeline_parallel",
        "                sending.pop(i).wait()  # at once",
        "                sending[i].wait()\n                sending.pop(i).wait()  # at once",
        RUN | {"hidden own_timeline"},
        "waited for something that was waited for before",
    ),
    Mutant(
        "activations are kept to the end",
        "pipeline_parallel",
        "_stage_backward(weights, alive.pop(i), grad_y, totals)",
        "_stage_backward(weights, alive[i], grad_y, totals)",
        {"hidden run_schedule_frees", "hidden run_schedule_frees_what_was_sent"},
        "something keeps them after their backward pass",
    ),
    Mutant(
        "the loss of the batch is a sum",
        "pipeline_parallel",
        "torch.stack(losses).mean()",
        "torch.stack(losses).sum()",
        {"public run_schedule", "hidden run_schedule", "hidden run_other_legal_schedules"},
        "the sum of the micro-batches' losses: the loss of the whole batch is their mean",
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
        "    for kind, i in schedule:",
        "    for kind, i in one_forward_one_backward_schedule(stage, last_stage + 1, num_micro_batches):",
        {"hidden run_schedule", "hidden run_other_legal_schedules"},
        "its schedule is [('forward', 0),",
    ),
    Mutant(
        "the weights are updated, too",
        "pipeline_parallel",
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals",
        "    for weight, total in zip(weights, totals):\n        weight -= 0.01 * total\n"
        "    return torch.stack(losses).mean() if stage == last_stage else None, totals",
        {"hidden run_schedule", "hidden run_other_legal_schedules", "hidden run_schedule_twice"},
        "changed its input, which is to keep its values",
    ),
    Mutant(
        "any list is a schedule",
        "pipeline_parallel",
        '    if sorted(schedule) != [(kind, i) for kind in ("backward", "forward") for i in range(num_micro_batches)]:',
        "    if False:",
        {"hidden run_schedule_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "waiting counts as work",
        "pipeline_parallel",
        "            x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)\n"
        "            with timeline.span(kind, i):\n",
        "            with timeline.span(kind, i):\n"
        "                x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)\n",
        {"hidden own_timeline"},
        "waiting for a message is not work",
    ),
    Mutant(
        "the bubble over the ideal time",
        "pipeline_parallel",
        "return (num_stages - 1) / (num_micro_batches + num_stages - 1)",
        "return (num_stages - 1) / num_micro_batches",
        {"public bubble", "hidden bubble_in_theory"},
        "idle time over the ideal time",
    ),
    Mutant(
        "a stage's waiting ends with its own last span",
        "pipeline_parallel",
        "    return 1 - sum(span.end - span.start for span in spans) / (len(timelines) * total)",
        "    total = sum(max(s.end for s in of) - min(s.start for s in of) for of in timelines if of)\n"
        "    return 1 - sum(span.end - span.start for span in spans) / total",
        {"public bubble", "hidden bubble_measured"},
        "the list of fractions is wrong",
    ),
]
