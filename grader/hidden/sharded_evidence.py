"""Judges the evidence of a sharded model's step, for part 6.

The hub has recorded the step's operations. The system has measured the ranks' memory. The judge's
functions, ``layer_forward`` and ``layer_backward``, have noted their arguments.
"""

from grader.check.api import Probe, listed
from grader.hidden.own_products import require_own_products
from grader.reference import sharded
from grader.reference.counting import counted

FORWARD, BACKWARD = "forward of layer {}", "backward of layer {}"  # names of probes
KEPT_LAYERS = (
    "layers of the forward pass were used again. In this call, shards of layers before the"
    " last two get new values when the backward pass begins. In the backward pass, gather each"
    " layer again, from the tensors in shards. Do not keep layers, and do not copy the shards"
)
# Operations that add up the tensors of ranks. All other operations deliver tensors unchanged.
SUMS = ("all_reduce", "reduce_scatter", "reduce")


def probes(forward, backward):
    """Return two lists of probes, for the forward and the backward pass: one probe for each layer.

    A probe returns the factor of its layer: see the driver ``followed_layers``.
    """
    return tuple(
        [Probe(name.format(layer), factor) for layer, factor in enumerate(factors)]
        for name, factors in ((FORWARD, forward), (BACKWARD, backward))
    )


# ——— what was sent


def require_traffic(run, most, sentence, itemsize=8):
    """Fail if a rank sends more than ``most`` bytes, or if it sends nothing to the others.

    For each operation, count the bytes that the best algorithm for this operation sends.
    ``itemsize`` is the number of bytes of an entry of the weights.
    """
    run.values()
    for rank in range(run.report.size):
        done = run.operations(rank)
        sent = sum(operation.traffic for operation in done)
        run.require_communication(rank, sent > 0)
        text = f"rank {rank} sends {sent:.0f} bytes, but {most:.0f} are enough."
        issued = f"(Rank {rank} issued: {listed(done)})"
        if itemsize < 8 and any(operation.dtype == "float64" for operation in done):
            text += " It sends float64, but the weights are float32. Send all tensors in the dtype"
            text += " of the weights."
        run.require(sent <= most + 0.5, f"{text} {sentence} {issued}")


def require_step_traffic(run, layers, layer_bytes, itemsize=8):
    """Fail if a rank sends more bytes than two gathers and a reduce-scatter of each layer send.

    Also fail if the ranks send too few bytes: see ``require_gathers``.
    """
    n = run.report.size
    sentence = (
        f"Each of the {layers} layers needs only two all-gathers and one reduce-scatter, of"
        f" {layer_bytes} bytes each."
    )
    require_traffic(run, 3 * layers * (n - 1) / n * layer_bytes, sentence, itemsize)
    require_gathers(run, layers, layer_bytes)


def require_gathers(run, layers, layer_bytes):
    """Fail if the ranks send too few bytes to gather each layer twice and to sum the gradients.

    One gather is enough for the last layer. The gradient of each layer is reduce-scattered once.
    Only the number of bytes is judged, so a submission may use other operations. But operations in
    ``SUMS`` are not gathers. The bytes of all ranks are added up, because some ranks may send more
    than others.
    """
    n = run.report.size
    one = (n - 1) / n * layer_bytes
    every = [operation for rank in range(n) for operation in run.operations(rank)]
    brought = sum(o.traffic for o in every if o.kind not in SUMS) / n
    shown = listed(run.operations(0))
    text = (
        f"The ranks send the bytes of {brought / one:.1f} gathers of a layer, but"
        f" {2 * layers - 1} gathers are needed: {layers} in the forward pass, and {layers - 1} in"
        " the backward pass. For the backward pass, a rank may keep only the last layer. Did a rank"
        " keep other layers? (Every operation that does not add up tensors counts as a gather."
        f" Rank 0 issued: {shown})"
    )
    run.require(brought >= (2 * layers - 1) * one - 0.5, text)
    sent = sum(operation.traffic for operation in every) / n
    needed = (3 * layers - 1) * one
    text = (
        f"On average, a rank sends {sent:.0f} bytes, but {needed:.0f} are needed: for the gathers,"
        f" and for a reduce-scatter of the gradient of each of the {layers} layers. (Rank 0 issued:"
        f" {shown})"
    )
    run.require(sent >= needed - 0.5, text)


# ——— what was alive


def imported(run, rank, there=0):
    """Return the number of bytes that a rank held before the step, mostly for imports.

    The hub measured this memory at the rank's first operation, a barrier before the step. By then,
    the rank has drawn shards of ``there`` bytes. These bytes are subtracted. Nearly all of torch is
    loaded earlier. So the result is large only if the submission imports something unusual. But a
    submission can also take memory for no reason before the step, and free it when the step begins.
    So a check must limit how much of this result it subtracts.
    """
    return max((run.grown(rank, 0) or 0) - there, 0)


def require_few_layers(run, rank, p, enough):
    """Fail if more than ``enough`` whole layers are alive on a rank during one of its products.

    In addition, activations are allowed. In the backward pass, the shards of the gradients are also
    allowed. A program may make the tensors for these shards before its first product. So the bytes
    that are alive during the first product, except one layer and its input, are allowed in the
    whole forward pass, up to the size of these shards. Half a layer is allowed for small tensors.
    """
    # Each layer needs at least one product in the forward pass. In the backward pass, each layer
    # except the first needs at least one product, for the gradient of its input.
    products = run.require_products(rank, (2 * p.layers - 1) * p.product)
    activations = (p.layers + 2) * p.activation_bytes
    gradients = p.layers * p.layer_bytes // p.n
    early = min(max(products[0].alive - p.layer_bytes - p.activation_bytes, 0), gradients)
    for i, alive in enumerate(entry.alive for entry in products):
        # The forward pass has one product for each layer.
        way, shards = ("forward", early) if i < p.layers else ("backward", gradients)
        without = "activations" if way == "forward" else "activations and shards of gradients"
        whole = (alive - shards - activations) / p.layer_bytes
        text = (
            f"rank {rank}, {way}: {alive} bytes were alive during one of its matrix products."
            f" Without {without}, these are at least {whole:.1f} whole layers of {p.layer_bytes}"
            f" bytes each. {'Two' if enough == 2 else 'Four'} are enough."
        )
        likely = "Does a variable still hold a layer that was used before, or its gradient?"
        if way == "forward":
            likely += (
                " (Tensors for gradients count here, too, unless they were made before the first"
                " product.)"
            )
        run.require(whole <= enough + 0.5, f"{text} {likely}")


def require_gathered_late(run, rank, p):
    """Fail if a rank has gathered much more than one layer ahead of its products.

    When the rank computes a layer, it may have gathered this layer and the next one. The products
    before show which layer it computes. A rank that computes more products than it needs may gather
    earlier. In the backward pass, a layer has at least two products. Then the operations so far
    also include the reduce-scatters of earlier layers, and perhaps one more.
    """
    one = (p.n - 1) / p.n * p.layer_bytes
    done = 0
    for entry in run.require_products(rank, 0):
        sent = sum(o.traffic for o in run.operations(rank) if o.at < entry.at * 1e9)
        forward = min(done // p.product, p.layers)
        backward = max(done - p.layers * p.product, 0) // (2 * p.product)
        most = forward + 2 if forward < p.layers else p.layers + 2 * backward + 3
        way = "forward" if forward < p.layers else "backward"
        text = (
            f"rank {rank}, {way}: when the rank computed layer"
            f" {forward if forward < p.layers else p.layers - 1 - backward} (counted from 0), it"
            f" had sent the bytes of {sent / one:.1f} gathers or reduce-scatters of a layer."
            f" {most} are enough at this time. Does the rank gather layers long before it needs"
            " them? Gather a layer just before it is used."
        )
        run.require(sent <= most * one + 0.5, text)
        done += entry.amount


def require_sums_in_time(run, layers, layer_bytes):
    """Fail if whole gradients wait for their reduce-scatters while a rank gathers further layers.

    Before the gather of layer l in the backward pass, the reduce-scatters of all layers from l + 2
    on must have begun. A submission may gather and add up with any operations. If it is not clear
    which operations gather, nothing is judged.
    """
    n = run.report.size
    one = (n - 1) / n * layer_bytes
    for rank in range(n):
        done = run.operations(rank)
        is_gather = _gathers(done, layers, one)
        if not is_gather:
            continue
        brought, summed = 0.0, 0.0
        total = sum(o.traffic for o, gathers in zip(done, is_gather) if gathers)
        keeps_last = total < 2 * layers * one - 0.5
        last = layers - 2 if keeps_last else layers - 1  # the first layer that comes again
        for operation, gathers in zip(done, is_gather):
            layer = last - int((brought + 0.5) // one - layers)
            waiting = layers - layer - 2 - summed / one
            text = (
                f"rank {rank}, backward: before the rank gathered layer {layer} (counted from 0),"
                f" it had reduce-scattered {summed / one:.1f} gradients of layers, but"
                f" {layers - layer - 2} were expected. Do whole gradients wait, perhaps as NumPy"
                " arrays? Reduce-scatter the gradient of each layer before you go on."
            )
            run.require(not gathers or layer > last or waiting * one <= 0.5, text)
            if gathers:
                brought += operation.traffic
            else:
                summed += operation.traffic


def _gathers(operations, layers, one):
    """Return for each operation whether it gathers, or [] if this is not clear.

    Either all gradients are added up by ``SUMS``, or all layers are gathered by all-gathers and
    broadcasts. ``one`` is the number of bytes that a rank sends for one gather of a layer.
    """
    sums = [o.kind in SUMS for o in operations]
    gathers = [o.kind in ("all_gather", "broadcast") for o in operations]
    added = sum(o.traffic for o, own in zip(operations, sums) if own)
    brought = sum(o.traffic for o, own in zip(operations, gathers) if own)
    if abs(added - layers * one) <= 0.5:
        return [not own for own in sums]
    is_all = (2 * layers - 1) * one - 0.5 <= brought <= 2 * layers * one + 0.5
    return gathers if is_all else []


def require_own_rows(run, rank, p):
    """Fail if a rank computes about as many products as the rows of all ranks take."""
    needed = (3 * p.layers - 1) * p.product
    require_own_products(
        run,
        rank,
        needed,
        f"Its own rows take {needed}, and the rows of all ranks take {p.n * needed}. Does the rank"
        " compute with the rows of other ranks? Reduce-scatter the gradients of its own rows.",
    )


# ——— what was called, and when


def require_followed(run, p):
    """Fail unless each rank called both functions once for each layer, with the right arguments.

    The functions are the judge's ``layer_forward`` and ``layer_backward``. When a function begins,
    it reports fingerprints of its arguments. At the end, it reports fingerprints of its results.
    Only then does it get the layer's factor. The input of a layer depends on the factors of the
    earlier layers. So a rank with the right fingerprints has computed the layers one by one, with
    the whole weight of each layer. It has computed each layer between the beginning and the end of
    the layer's function.
    """
    for rank in range(p.n):
        given = sharded.followed_step(p.weights, p.batches[rank], p.forward, p.backward)
        for layer, weight in enumerate(p.weights):
            x, grad = given.inputs[layer], given.grads[layer]
            grad_x, gradient = given.results[layer]
            for name, function, due, results in (
                (
                    FORWARD,
                    "layer_forward",
                    {"x": x, "weight": weight},
                    {"y": given.outputs[layer]},
                ),
                (
                    BACKWARD,
                    "layer_backward",
                    {"x": x, "weight": weight, "grad_y": grad},
                    {"grad_x": grad_x, "gradient": gradient},
                ),
            ):
                name = name.format(layer)
                told = run.told(rank, f"{name} got", before=f"{name} began")
                times = len(run.marks(rank, f"{name} began"))
                text = (
                    f"rank {rank} called {function} {times} times for layer {layer} (counted from"
                    " 0), not once."
                )
                run.require(times == 1, text)
                text = (
                    f"rank {rank} began layer {layer} (counted from 0) before it called {function}."
                )
                run.require(len(told) == 1 and len(told[0]) == len(due), text)
                for (argument, array), number in zip(due.items(), told[0]):
                    text = (
                        f"rank {rank} called {function} for layer {layer} (counted from 0) with"
                        f" a wrong {argument}. Call {function} once for each"
                        " layer, with this rank's input of the layer and with the whole weight, not"
                        " a shard. Do not compute a layer in any other way."
                    )
                    run.require(sharded.is_fingerprint(number, array), text)
                gave = run.told(rank, f"{name} gave", before=f"{name} ended")
                text = (
                    f"rank {rank}: {function} did not compute layer {layer} (counted from 0) as the"
                    " given mlp.py does. Do not change mlp or torch."
                )
                run.require(len(gave) == 1 and len(gave[0]) == len(results), text)
                for array, number in zip(results.values(), gave[0]):
                    run.require(sharded.is_fingerprint(number, array), text)


def require_order(run, rank, layers, layer_bytes):
    """Fail unless a rank gathers exactly one layer ahead in both passes.

    When the rank begins to compute a layer, it must have started the gather of the next layer, but
    not the gather of any later layer. Before the last layer of the forward pass, the backward
    pass's first gather may start. The backward pass may gather the last layer again, but need not.
    Each all-gather must gather exactly one layer. When the backward pass of layer l begins, the
    reduce-scatters of all layers from l + 2 on must have started.
    """
    shard_bytes = layer_bytes // run.report.size
    done = [o for o in run.operations(rank) if o.kind == "all_gather"]
    gathers = [o.at for o in done]
    again = len(gathers) - layers  # gathers of the backward pass
    text = f"rank {rank} started {len(gathers)} all-gathers for {layers} layers."
    enough = f"Each layer is gathered once in each pass: {2 * layers} all-gathers are enough."
    run.require(again <= layers, f"{text} {enough}")
    text += " The backward pass must also gather all layers except the last: in total, at least"
    text += f" {2 * layers - 1} all-gathers are needed."
    run.require(again >= layers - 1, f"{text} Did the rank keep layers?")
    for number, gather in enumerate(done):
        text = (
            f"rank {rank}'s all-gather number {number} (counted from 0) sends {gather.bytes} bytes,"
            f" but the rank's shard of a layer has {shard_bytes} bytes. Gather one layer with each"
            " all-gather."
        )
        run.require(gather.bytes == shard_bytes, text)
    moments = [(FORWARD, l, min(l + 2, layers)) for l in range(layers)]
    # In the backward pass, layer ``layers - 1`` may have been gathered again.
    back = again - layers
    moments += [(BACKWARD, l, layers + min(layers - l + 1 + back, again)) for l in range(layers)]
    for name, l, due in moments:
        began = run.passed(rank, f"{name.format(l)} began")
        started = sum(at < began for at in gathers)
        # The first gather of the backward pass may start before the forward pass computes its last
        # layer.
        most = due + (name == FORWARD and l == layers - 1)
        when = f"When the {name.format(l)} began (layers are counted from 0), rank {rank} had"
        text = f"{when} started {counted(started, 'all-gather')}; {due} were expected."
        following = f"layer {l - 1 if name == BACKWARD else l + 1}"
        likely = f"Start the gather of {following} before you compute layer {l}. (If your code does"
        likely += " this: does it gather shards[l − 1] also for l = 0? shards[-1] is the last"
        likely += " layer.)"
        run.require(started >= due, f"{text} {likely}")
        likely = (
            "Each layer that waits for its turn takes memory: gather one layer ahead, not more."
        )
        run.require(started <= most, f"{text} {likely}")
    for layer in range(layers - 2):
        began = run.passed(rank, f"{BACKWARD.format(layer)} began")
        sums = [o for o in run.operations(rank) if o.kind == "reduce_scatter" and o.at < began]
        started, due = sum(o.bytes for o in sums) / layer_bytes, layers - layer - 2
        text = (
            f"When the {BACKWARD.format(layer)} began (layers are counted from 0), rank {rank} had"
            f" started the reduce-scatters of {started:.1f} gradients; at least {due} were"
            " expected. Do whole gradients wait, perhaps as NumPy arrays? Start the reduce-scatter"
            " of a layer's gradient as soon as layer_backward has returned it."
        )
        run.require(started >= due - 0.01, text)


def require_overlap(run, rank, layers):
    """Fail if a rank waits for the gather of a layer before it computes the previous layer.

    The hub withholds the result of an all-gather until the rank has computed another layer. The
    rank may wait immediately for the gather of the first layer of each pass, because it can compute
    nothing during this gather.
    """
    gathers = sum(o.kind == "all_gather" for o in run.operations(rank))
    again = gathers >= 2 * layers  # whether the last layer is gathered again
    for number in run.awaited_early(rank):
        # If there are more all-gathers than the layers need, ``require_order`` fails.
        if number == 0 or number == layers and again or number >= 2 * layers - (not again):
            continue
        if number < layers:
            way, layer, computed = "forward", number, number - 1
        else:
            way, layer = "backward", 2 * layers - 1 - number - (not again)
            computed = layer + 1
        text = (
            f"{way}: rank {rank} waited for the gather of layer {layer} before it computed layer"
            f" {computed} (layers are counted from 0), so nothing overlaps. Wait for a gather only"
            " when its layer is needed."
        )
        run.require(False, text)
