"""A driver is the small program in which a rank calls a student's function.

The judge names the driver of each call. Most calls use ``plain``, which only calls the function. A
driver takes the student's function or class, the decoded arguments, and ``mark``. With ``mark`` it
adds a named mark to the rank's trail, which is the list of the rank's events. The driver returns
the value that the judge checks. Drivers are not secret.
"""

from collections.abc import Callable
from functools import partial

from grader.rank.drivers import (
    benchmarking,
    calls,
    collectives,
    data_parallel,
    device_mesh,
    pipeline_parallel,
    schedules,
    sequence_and_experts,
    sharded_data_parallel,
    tensor_parallel,
    timeline_programs,
)

DRIVERS: dict[str, Callable] = {
    "plain": calls.plain,
    "received_at_wait": calls.received_at_wait,
    "in_turn": calls.in_turn,
    "refilled": calls.refilled,
    "emptied": calls.emptied,
    "described": calls.described,
    "twice": calls.twice,
    "refilled_copies": calls.refilled_copies,
    "stored": calls.stored,
    "kept_of_drawn": calls.kept_of_drawn,
    "metered": calls.metered,
    "read_while_computing": collectives.read_while_computing,
    "overwritten_after": collectives.overwritten_after,
    "timed": benchmarking.timed,
    "swept": benchmarking.swept,
    "fitted": benchmarking.fitted,
    "generator": data_parallel.generator,
    "trained": data_parallel.trained,
    "views": data_parallel.views,
    "backward_passes": data_parallel.backward_passes,
    "interleaved_passes": data_parallel.interleaved_passes,
    "differentiate": tensor_parallel.differentiate,
    "differentiate_metered": tensor_parallel.differentiate_metered,
    "apply_and_drop": tensor_parallel.apply_and_drop,
    "differentiate_in_turn": tensor_parallel.differentiate_in_turn,
    "stack_of_pairs": tensor_parallel.stack_of_pairs,
    "remembered": tensor_parallel.remembered,
    "in_step +1": partial(pipeline_parallel.in_step, 1),
    "in_step -1": partial(pipeline_parallel.in_step, -1),
    "with_timeline": pipeline_parallel.with_timeline,
    "of_spans": pipeline_parallel.of_spans,
    "drawn_shards": sharded_data_parallel.drawn_shards,
    "zero_steps": sharded_data_parallel.zero_steps,
    "zero_in_turn": sharded_data_parallel.zero_in_turn,
    "zero_rests": sharded_data_parallel.zero_rests,
    "renewed_layers": sharded_data_parallel.renewed_layers,
    "followed_layers": sharded_data_parallel.followed_layers,
    "in_groups": device_mesh.in_groups,
    "on_mesh": device_mesh.on_mesh,
    "on_mesh_metered": device_mesh.on_mesh_metered,
    "on_mesh_in_turn": device_mesh.on_mesh_in_turn,
    "chunked": schedules.chunked,
    "halves": schedules.halves,
    "freed": schedules.freed,
    "beside_products": schedules.beside_products,
    "saves": sequence_and_experts.saves,
    "beside_experts": sequence_and_experts.beside_experts,
    "rests": sequence_and_experts.rests,
    "there_and_back": sequence_and_experts.there_and_back,
    **timeline_programs.PROGRAMS,
}
