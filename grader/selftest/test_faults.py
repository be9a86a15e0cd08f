"""What goes wrong in distributed programs, and the verdict that each case must get.

A teaching assistant would give the same verdict. Line numbers below are those of the staged file:
the preamble of ``conftest`` has 5 lines.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from grader.check.api import CheckFailed, Delay, Probe, RequiresGrad, call, per_rank
from grader.check.failure_message import CALL_LINE
from grader.diagnosis.root_cause import DEADLOCK, STILL
from grader.wire import frames

X = np.array([1.0, 2.0, 3.0, 4.0], np.float32)


def verdict(world, size: int, *expected, function: str = "broken", **arguments) -> str:
    """Return the message with which a check of ``broken`` fails. Each rank passes the tensor X."""
    (run,) = world(size, call(f"collectives.{function}", X, **arguments))
    with pytest.raises(CheckFailed) as failure:
        run.returns(*(expected or [X] * size))
    return str(failure.value)


def test_a_rank_that_raises_is_named_and_its_victims_are_not(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 1:
                return x.reshape(3, 3)
            dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 3)
    assert "rank 1 raised RuntimeError: shape '[3, 3]' is invalid" in message
    assert "collectives.py:9, in broken:  return x.reshape(3, 3)" in message
    assert "(ranks 0 and 2 only waited for rank 1, and are not the cause.)" in message
    assert "site-packages" not in message and "grader" not in message
    assert "When it hangs" not in message  # this program does not hang


def test_a_rank_that_returns_early(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 2:
                return x
            dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 3)
    assert "Deadlock" in message
    assert "rank 2 has already returned" in message
    assert "rank 0 waits at collectives.py:10:  dist.all_reduce(x)" in message
    assert "its all-reduce (sum) of 4 × float32 at collectives.py:10 waits for rank 2" in message
    assert "Likely: rank 2 returned without taking part in the all-reduce." in message
    assert message.endswith(STILL)


@pytest.mark.parametrize("peer", ["-1", "2"])
def test_a_rank_that_does_not_exist_is_named(submit, peer):
    world = submit(f"""
        def broken(x):
            if dist.get_rank() == 0:
                dist.recv(x, src={peer})
            return x
        """)
    message = verdict(world, 2)
    assert (
        f"rank 0 raised IndexError: receive from rank {peer}: the group has no such rank; its ranks"
        " are 0 to 1" in message
    )
    assert f"dist.recv(x, src={peer})" in message


def test_a_hang_without_a_likely_cause_gets_questions(submit):
    world = submit("""
        def broken(x):
            dist.barrier() if dist.get_rank() else [dist.barrier(), dist.barrier()]
            return dist.all_reduce(x) if dist.get_rank() == 2 else dist.barrier()
        """)
    message = verdict(world, 3)
    assert "When it hangs" in message


def test_crossed_blocking_sends(submit):
    world = submit("""
        def broken(x):
            other = 1 - dist.get_rank()
            dist.send(x, other)
            dist.recv(x, other)
            return x
        """)
    message = verdict(world, 2)
    assert "Deadlock" in message and CALL_LINE.fullmatch(message.splitlines()[0])
    assert "rank 0 waits at collectives.py:9:  dist.send(x, other)" in message
    assert "its send of 4 × float32 to rank 0 at collectives.py:9 waits for rank 0" in message
    assert "every rank sends first" in message


def test_only_ranks_that_receive_are_said_to_receive_first(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 2:
                return x
            other = 1 - dist.get_rank()
            dist.recv(torch.empty_like(x), other)
            dist.send(x, other)
            return x
        """)
    message = verdict(world, 3)
    assert "ranks 0 and 1 receive first" in message and "every rank" not in message


def test_receives_without_a_sender(submit):
    world = submit("""
        def broken(x):
            work = dist.irecv(x, (dist.get_rank() + 1) % dist.get_world_size())
            work.wait()
            dist.send(x, (dist.get_rank() - 1) % dist.get_world_size())
            return x
        """)
    message = verdict(world, 3)
    assert "rank 2 waits at collectives.py:9:  work.wait()" in message
    assert "every rank receives first" in message


def test_mismatched_collectives(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.broadcast(x, 0)
            else:
                dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 3)
    assert "The ranks disagree about which operation this is" in message
    assert "rank 0: broadcast of 4 × float32 with root 0 at collectives.py:9" in message
    assert "ranks 1, 2: all-reduce (sum) of 4 × float32 at collectives.py:11" in message
    assert "Likely: the ranks have taken different branches." in message


def test_sizes_that_gloo_takes_silently(submit):
    world = submit("""
        def broken(x):
            size = 4 if dist.get_rank() == 0 else 6
            y = torch.ones(size)
            dist.all_reduce(y)
            return y[:4].clone()
        """)
    (run,) = world(3, call("collectives.broken", X))
    with pytest.raises(CheckFailed, match="how many elements there are") as failed:
        run.returns(*[np.full(4, 3, np.float32)] * 3)
    assert "different sizes, but all-reduce needs equal sizes." in str(failed.value)


def test_reductions_that_differ_silently(submit):
    world = submit("""
        def broken(x):
            op = dist.ReduceOp.MAX if dist.get_rank() == 0 else dist.ReduceOp.SUM
            dist.all_reduce(x, op=op)
            return x
        """)
    message = verdict(world, 2)
    assert "disagree about the reduction" in message and "all-reduce (max)" in message


SPLITS = """
        def broken(x):
            rank = dist.get_rank()
            sent, received = ([1, 3], [1, 1]) if rank == 0 else ([1, 1], [2, 1])
            out = torch.empty(sum(received))
            {wait}
            return out
        """
ALONE = "dist.all_to_all_single(out, x[: sum(sent)], received, sent)"
AFTER_A_MESSAGE = """works = [dist.isend(x, 1 - rank), dist.irecv(x.clone(), 1 - rank)]
            [work.wait() for work in works]
            work = dist.all_to_all_single(out, x[: sum(sent)], received, sent, async_op=True)
            work.wait()"""


@pytest.mark.parametrize("wait", [ALONE, AFTER_A_MESSAGE])
def test_split_sizes_that_do_not_fit_each_other_name_the_ranks(submit, wait):
    message = verdict(submit(SPLITS.format(wait=wait)), 2)
    assert "The ranks disagree about the split sizes:\n    rank 0: all-to-all of 4" in message
    assert "rank 1: all-to-all of 2 × float32 at collectives.py:1" in message
    assert "Rank 0 sends 3 elements to rank 1, but rank 1 expects 2." in message
    assert "twice" not in message and "No rank goes on" not in message
    assert "needs equal sizes" not in message  # other collectives need equal sizes


def test_split_sizes_that_do_not_fit_each_other_name_the_ranks_on_gloo(submit, on_gloo):
    message = verdict(submit(SPLITS.format(wait=ALONE)), 2)
    assert "The ranks disagree about the split sizes:\n    rank 0: all-to-all of 4" in message
    assert "Rank 0 sends 3 elements to rank 1, but rank 1 expects 2." in message


@pytest.mark.parametrize(
    "line, words",
    [
        (
            "dist.all_reduce(x, op=dist.ReduceOp.BAND)",
            "all_reduce: cannot use ReduceOp.BAND with tensors of torch.float32",
        ),
        (
            "dist.reduce_scatter_tensor(x[:2], x, op=dist.ReduceOp.BXOR)",
            "reduce_scatter: cannot use ReduceOp.BXOR with tensors of torch.float32",
        ),
        (
            "dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0))",
            "all_reduce: the checks do not support ReduceOp.PREMUL_SUM",
        ),
    ],
)
def test_a_reduction_that_cannot_be_carried_out_raises_where_it_is_called(submit, line, words):
    message = verdict(
        submit(f"""
        def broken(x):
            {line}
            return x
        """),
        2,
    )
    assert f"raised RuntimeError: {words}" in message
    assert f"collectives.py:8, in broken:  {line}" in message


def test_right_values_by_luck_are_not_right(submit, on_gloo):
    world = submit("""
        def broken(x):
            dist.all_reduce(torch.zeros(4), op=dist.ReduceOp.MAX if dist.get_rank() == 0 else dist.ReduceOp.SUM)
            return x
        """)
    assert "The values are right, but only by luck." in verdict(world, 3)


@pytest.mark.parametrize(
    "how", ["dist.all_reduce(y)", "dist.recv(y, 0) if dist.get_rank() else dist.send(y, 1)"]
)
def test_dtypes_that_differ(submit, how):
    world = submit(f"""
        def broken(x):
            y = x if dist.get_rank() == 0 else x.double()
            {how}
            return x
        """)
    message = verdict(world, 2)
    assert "disagree about" in message and "float32" in message and "float64" in message
    assert "with another dtype.\n        Without a dtype, torch.empty and torch.zeros" in message


def test_dtype_is_not_blamed_if_a_rank_called_one_collective_more(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.all_reduce(torch.tensor([len(x)]))
            dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 2)
    assert "Likely: the ranks are at different lines. Earlier, a rank left out" in message
    assert "belong together, the ranks must agree about how many elements there are." in message
    assert "have made their tensors" not in message


def test_a_message_of_a_later_call_is_not_compared_with_an_earlier_receive(submit):
    world = submit("""
        def broken(x):
            for _ in range(1 if dist.get_rank() == 0 else 2):
                if dist.get_rank() == 0:
                    dist.send(x, 1)
                else:
                    dist.recv(x.new_empty(x.shape), 0)
            return x
        """)
    longer = np.ones(6)
    run, _ = world(2, call("collectives.broken", X), call("collectives.broken", longer))
    with pytest.raises(CheckFailed) as failure:
        run.returns(X, X)
    message = str(failure.value)
    assert "rank 0 has already returned" in message and "disagree" not in message
    assert "rank 1 started 2 receives from rank 0 (line 12)" in message
    assert (
        "rank 0 sent only 1 message to rank 1 (line 10) before the function of rank 0 returned."
        in message
    )


def test_a_rank_that_passes_another_group_is_told_both_groups(submit):
    world = submit("""
        def broken(x):
            first, both = dist.new_group([0]), dist.new_group([0, 1])
            dist.all_reduce(x, group=first if dist.get_rank() == 0 else both)
            return x
        """)
    message = verdict(world, 2)
    assert (
        "Likely: rank 0 called the all-reduce at collectives.py:9 in the group of rank 0, but"
        " rank 1 called it in the group of ranks 0 and 1.\n"
        "        Rank 0 returned without taking part in the call of rank 1." in message
    )


def test_a_call_left_out_in_a_line_for_several_groups_is_no_other_group(submit):
    world = submit("""
        def total(x, group):
            dist.all_reduce(x, group=group)
        def broken(x):
            rank = dist.get_rank()
            groups = [dist.new_group(own) for own in ([0, 1], [2, 3], [0, 2], [1, 3])]
            total(x, groups[rank // 2])
            if rank < 2:
                total(x, groups[2 + rank % 2])
            return x
        """)
    message = verdict(world, 4)
    assert "Likely: rank 2 returned without taking part in the all-reduce." in message


@pytest.mark.parametrize(
    "before, words",
    [
        ("dist.destroy_process_group()", "your code called dist.destroy_process_group(), here or"),
        ("dist.init_process_group('gloo')", "has already called init_process_group(). Remove"),
    ],
)
def test_the_process_group_belongs_to_the_caller(submit, before, words):
    world = submit(f"""
        def broken(x):
            {before}
            dist.all_reduce(x)
            return x
        """)
    assert words in verdict(world, 2)


@pytest.mark.parametrize(
    "count, words", [(3, "only 3 receives from rank 1"), (1, "only 1 receive from rank 1")]
)
def test_messages_of_an_earlier_call_are_not_counted(submit, count, words):
    world = submit(f"""
        def broken(x):
            if dist.get_rank() == 1:
                for work in [dist.isend(x, 0) for _ in range({count + 1})]:
                    work.wait()
            else:
                for _ in range({count}):
                    dist.recv(x.new_empty(x.shape), 1)
            return x
        """)
    _, run = world(2, *(call("collectives.broken", X) for _ in range(2)))
    with pytest.raises(CheckFailed) as failure:
        run.returns(X, X)
    message = str(failure.value)
    assert f"Likely: rank 1 started {count + 1} sends to rank 0 (line 9)," in message
    end = "(line 13) before the function of rank 0 returned."
    assert f"but rank 0 started {words} {end}" in message


def test_send_and_receive_that_disagree_about_the_size(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.send(x, 1)
            else:
                dist.recv(x[:2], 0)
            return x
        """)
    message = verdict(world, 2)
    assert "disagree about what is sent" in message
    # These are gloo's own words.
    assert "enforce fail" not in message and "pair.cc" not in message and "0x" not in message
    assert "send of 4 × float32 to rank 1 at collectives.py:9" in message
    assert "receive of 2 × float32 from rank 0 at collectives.py:11" in message
    assert "Likely: the message and rank 1's tensor differ in size." in message


def test_a_send_of_an_empty_slice_names_the_sender(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.send(x[4:6], 1)
            else:
                dist.recv(x[:2], 0)
            return x
        """)
    message = verdict(world, 2)
    assert "Likely: rank 0 sends a tensor without entries. Does a slice begin beyond" in message


def test_an_endless_loop_is_stopped_at_its_line(submit):
    world = submit(
        """
        def broken(x):
            while dist.get_rank() == 1:
                pass
            dist.all_reduce(x)
            return x
        """,
        cpu_seconds=1.0,
    )
    message = verdict(world, 2)
    assert (
        "Stopped after 1 seconds of processor time in one call. Is there an endless loop?"
        in message
    )
    assert (
        "rank 1 is busy at collectives.py:8:  while dist.get_rank() == 1:" in message
        or "collectives.py:9" in message
    )
    assert "(rank 0 only waited, and is not the cause.)" in message


def test_an_endless_loop_at_import(submit):
    message = verdict(submit("while True: pass", cpu_seconds=1.0), 1)
    assert (
        "in the import of collectives.py. Is there an endless loop outside of all functions?"
        in message
    )
    assert "rank 0 is busy at collectives.py:6:  while True: pass" in message


def test_a_loop_in_code_that_a_function_runs_is_in_its_call(submit):
    source = "def broken(x): exec(compile('while True: pass', __file__, 'exec'))"
    message = verdict(submit(source, cpu_seconds=1.0), 1)
    assert "1 seconds of processor time in one call. Is there an endless loop?" in message


def test_os_exit_is_no_pass(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 1:
                os._exit(0)
            dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 3)
    assert "Rank 1 ended its process with exit code 0 instead of returning." in message
    assert "rank 1 called os._exit(0) at collectives.py:9" in message
    assert "(ranks 0 and 2 only waited, and are not the cause.)" in message


def test_sys_exit_is_no_pass(submit):
    message = verdict(submit("def broken(x): sys.exit(0)"), 2)
    assert "ranks 0 and 1 raised SystemExit" in message and "must not end the process" in message


def test_a_segmentation_fault(submit):
    world = submit("""
        import ctypes
        def broken(x):
            if dist.get_rank() == 0:
                ctypes.string_at(0)
            dist.all_reduce(x)
            return x
        """)
    message = verdict(world, 2)
    assert "Rank 0 was killed by SIGSEGV (segmentation fault)." in message
    assert "rank 0 was at collectives.py:10:  ctypes.string_at(0)" in message


def test_killed_by_a_signal(submit):
    message = verdict(submit("def broken(x): os.kill(os.getpid(), 9)"), 1)
    assert "Rank 0 was killed by SIGKILL" in message


def test_what_cannot_be_imported(submit):
    message = verdict(submit("import numpi"), 2)
    assert (
        "collectives.py cannot be imported: ModuleNotFoundError: No module named 'numpi'" in message
    )
    assert "collectives.py:6" in message


def test_a_syntax_error(submit):
    message = verdict(submit("def broken(x:\n    return x"), 1)
    assert (
        "collectives.py cannot be imported: SyntaxError" in message
        and "collectives.py:6" in message
    )


def test_a_missing_function(submit):
    assert "collectives.py has no broken" in verdict(submit("def brokn(x): return x"), 1)


def test_a_stub_is_not_a_failure(submit):
    world = submit("def broken(x): raise NotImplementedError('Problem 1.1: broken')")
    (run,) = world(1, call("collectives.broken", X))
    with pytest.raises(CheckFailed) as failure:
        run.returns(X)
    assert not failure.value.implemented


@pytest.mark.parametrize(
    "value, words",
    [
        ("None", "got None"),
        ("(x,)", "got a tuple of length 1"),
        ("x.tolist()", "got a list of length 4"),
        ("x[:3]", "expected shape (4,), got (3,)"),
        ("x[None]", "expected shape (4,), got (1, 4)"),
        ("x.double()", "expected dtype float32, got float64"),
        ("x.bfloat16()", "dtype torch.bfloat16"),
        ("x * float('nan')", "nan at [0]; 4 of 4 entries are not finite"),
        ("x[:1].expand(4)", "elements share memory"),
        ("x.to_sparse()", "layout torch.sparse_coo"),
        ("x.as_subclass(type('Liar', (torch.Tensor,), {}))", "a subclass of torch.Tensor"),
        ("lambda: x", "an object of type function"),
        ("[[[[[[[[[[x]]]]]]]]]]", "got a list of length 1"),
    ],
)
def test_what_is_no_result(submit, value, words):
    assert words in verdict(submit(f"def broken(x): return {value}"), 1)


@pytest.mark.parametrize("name, note", [("1", "7"), ("9", "")])
def test_of_calls_in_turn_the_one_that_raised_is_named(submit, name, note):
    """A rank that forges the mark of another turn only changes what the message says."""
    world = submit("""
        def broken(n):
            if n == 7:
                raise KeyError(n)
            return n
        """)
    (run,) = world(1, call("collectives.broken", (3,), (7,), driver="in_turn"))
    for event in run.report.ranks[0].trail:
        if getattr(event, "name", "").startswith(frames.TURN_RAISED):
            object.__setattr__(event, "name", frames.TURN_RAISED + name)
    with pytest.raises(CheckFailed) as failure:
        run.returns([3, 7])
    assert str(failure.value).startswith(f"broken{note and f'({note})'} on 1 rank\n")


def test_a_value_that_cannot_be_reached(submit):
    """A list that contains itself does not end the rank or the judge."""
    assert "got a list of length 1" in verdict(
        submit("def broken(x):\n    a = []\n    a.append(a)\n    return a"), 1
    )


def test_changed_inputs_are_told(submit):
    world = submit("def broken(x): return x.add_(1)")
    (run,) = world(1, call("collectives.broken", X))
    run.returns(X + 1)
    with pytest.raises(CheckFailed, match="rank 0 modified its input"):
        run.keeps_inputs()


def test_a_changed_input_is_told_where_the_result_is_wrong(submit):
    message = verdict(submit("def broken(x): return x.add_(1)"), 1)
    assert "Your function changed its argument: work on a copy." in message


def test_an_input_that_is_as_it_was_is_not_told(submit):
    assert "changed its argument" not in verdict(submit("def broken(x): return x + 1"), 1)


def test_what_works_in_place_is_not_told_that_it_changed_its_argument(submit):
    world = submit("def broken(x): pass\ndef train(x): return x.add_(1)")
    assert "changed its argument" not in verdict(world, 1, function="train")


def test_a_tensor_for_a_list_of_tensors_is_told(submit):
    world = submit("""
        def broken(x):
            dist.scatter(torch.empty(2), x if dist.get_rank() == 0 else None, src=0)
        """)
    message = verdict(world, 2)
    assert (
        "Likely: the call needs a list of tensors, one for each rank, but it got one tensor"
        in message
    ), message


@pytest.mark.parametrize("condition", ["if x: pass", "dist.scatter(x, [x] if x else None, 0)"])
def test_a_condition_on_a_tensor_is_told_from_a_tensor_for_a_list(submit, condition):
    message = verdict(
        submit(f"""
        def broken(x):
            {condition}
        """),
        2,
    )
    assert (
        "Test for None with `tensor is not None`." in message and "list of tensors" not in message
    )


@pytest.mark.parametrize(
    "line, words",
    [
        ("return CopyToRanks(x) @ x", "Use CopyToRanks.apply(…)."),
        ("return torch.relu(CopyToRanks(x))", "Use CopyToRanks.apply(…)."),
        ("return CopyToRanks(x).shape", "Use CopyToRanks.apply(…)."),
        ("dist.all_reduce(x, op='average')", "op must be a dist.ReduceOp"),
        ("return Listed.apply(x.requires_grad_()).sum().backward()", "a tensor or None"),
        ("return x.chunk(3)[2]", "chunk(n) may return fewer than n parts"),
        ("return x.split(3)[2]", "split(k) makes parts of length k"),
        (
            "return torch.ones(2, 6) @ torch.ones(2, 1)",
            "Is the first one whole, and the second one",
        ),
        ("return torch.ones(2, 2) @ torch.ones(6, 1)", "Is one tensor still a shard"),
        (
            "from handout import mlp; mlp.layer_backward(x, x, x, x[:3])",
            "grad_y and z must have the same shape",
        ),
        ("dist.all_reduce(x).wait()", "without async_op=True waits until it has ended"),
        ("return torch.relu(dist.all_reduce(x))", "dist.all_reduce(…) returns None"),
        ("dist.all_gather(list(x.split(1)), x)", "the list must have one tensor for each"),
        ("dist.all_to_all_single(x, x, [4], [4])", "a list of split sizes has one number for each"),
        ("dist.all_to_all_single(x[:3], x, [4, 0, 0], [4, 0, 0])", "Which is wrong, the output"),
        ("dist.all_to_all_single(x, x, [4, 0, 0], [3, 0, 0])", "input_split_sizes are the numbers"),
        ("dist.all_to_all_single(x, x)", "without split sizes, the rows are cut into n equal"),
    ],
)
def test_a_slip_is_told_by_its_exception(submit, line, words):
    message = verdict(
        submit(f"""
        class CopyToRanks(torch.autograd.Function):
            pass
        class Listed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, grad):
                return [grad]
        def broken(x):
            {line}
        """),
        3,
    )
    assert words in message


def test_an_index_out_of_range_without_a_chunk_is_nobodys_slip(submit):
    message = verdict(
        submit("""
        def other(x): return x.chunk(4)
        def broken(x): return [x][3]
        """),
        1,
    )
    assert "list index out of range" in message and "Likely" not in message


def test_an_index_out_of_range_after_a_split_in_a_list_is_nobodys_slip(submit):
    message = verdict(submit("def broken(x): return x.split([1, 3])[2]  # not split(2)"), 2)
    assert "index out of range" in message and "Likely" not in message


def test_an_index_out_of_range_of_all_chunks_is_nobodys_slip(submit):
    message = verdict(submit("def broken(x): return x.chunk(2)[2]"), 2)
    assert "index out of range" in message and "Likely" not in message


@pytest.mark.parametrize(
    "send",
    [
        "dist.send(x, peer)",
        "dist.isend(x, peer)",
        "for op in [dist.P2POp(dist.isend, x, peer)]: dist.batch_isend_irecv([op])",
    ],
)
def test_a_tensor_that_is_sent_and_is_not_contiguous_is_named(submit, send):
    message = verdict(
        submit(f"""
        def broken(x):
            x, peer = torch.ones(3, 2).t(), 1 - dist.get_rank()
            received = torch.empty(6)
            dist.irecv(received, peer)
            {send}  # not the recv
        """),
        2,
    )
    assert "Likely: the tensor that is sent is not contiguous" in message


def test_a_receive_into_memory_that_is_not_contiguous_names_the_receive(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                return dist.send(x.contiguous(), 1)
            return dist.recv(torch.empty(3, 2).t(), 0)
        """)
    message = verdict(world, 2)
    assert "tensor has to be contiguous" in message
    assert "Likely: the tensor that receives the message is not contiguous" in message


@pytest.mark.parametrize("network", ["on_hub", "on_gloo"])
def test_a_result_of_a_reduce_on_another_rank_than_its_root_is_told(submit, network, request):
    request.getfixturevalue(network)
    world = submit("""
        def broken(x):
            total = x.clone()
            dist.reduce(total, 0)
            return total
        """)
    message = verdict(world, 2, 2 * X, 2 * X)
    assert (
        "wrong on rank 1." in message and "Likely: rank 1 took part only in a reduce to" in message
    )
    assert "only the root has the result; the tensors of other ranks are undefined." in message


def test_a_sum_divided_by_the_rank_is_told(submit):
    world = submit("""
        def broken(x):
            total = x.clone()
            dist.all_reduce(total)
            return total / dist.get_rank()
        """)
    message = verdict(world, 3)
    assert (
        "Likely: the result was divided by 0. Did you divide by the rank instead of the number of ranks?"
        in message
    )


def test_a_rank_that_only_sends_received_nothing(submit):
    world = submit("""
        def shift_right(x):
            received = torch.empty_like(x)
            if dist.get_rank() > 0:
                dist.recv(received, dist.get_rank() - 1)
            if dist.get_rank() < 2:
                dist.send(x, dist.get_rank() + 1)
            return received
        """)
    message = verdict(world, 3, X + 1, X, X, function="shift_right")
    assert "Likely: rank 0 received nothing: it issued no receive and no collective." in message


def test_a_reduce_and_a_broadcast_are_not_told_to_be_a_reduce(submit):
    world = submit("""
        def broken(x):
            total = x.clone()
            dist.reduce(total, 0)
            dist.broadcast(total, 0)
            return total + 1
        """)
    assert "After a reduce" not in verdict(world, 2, 2 * X, 2 * X)


def test_everybody_has_the_wrong_roots_tensor(submit):
    world = submit("""
        def broken(x):
            x = x.clone()
            dist.broadcast(x, src=0)
            return x
        """)
    (run,) = world(2, call("collectives.broken", per_rank(X, 10 * X + 1)))
    with pytest.raises(
        CheckFailed,
        match="every rank has rank 0's unchanged input. Should the result be the input of another rank",
    ):
        run.returns(10 * X + 1, 10 * X + 1)


@pytest.mark.long
def test_a_rank_that_computes_slowly_is_busy_and_waits_for_nothing(submit):
    world = submit(
        """
        def broken(x):
            while dist.get_rank() == 0:
                x + 1
            return x
        """,
        wall_seconds=2.0,
    )
    message = verdict(world, 2)
    assert "Stopped after 2 seconds. The ranks used little processor time" in message
    assert "rank 0 is busy at collectives.py:" in message


def test_a_flood_of_output_is_cut(submit):
    message = verdict(submit("def broken(x):\n    while True: print('spam' * 99)"), 2)
    assert "printed more than 1 MiB" in message
    assert len(message) < 10_000


def test_the_last_lines_of_much_output_are_shown(submit):
    """The judge does not keep all lines, but it counts all of them."""
    message = verdict(submit("def broken(x):\n    for i in range(5000): print('line', i)"), 2)
    assert "rank 0:\n        … 4988 lines before\n        line 4988\n" in message
    assert "        line 4999\n    rank 1:" in message


def test_output_is_shown(submit):
    assert "rank 1:\n        hello from 1" in verdict(
        submit("def broken(x): print('hello from', dist.get_rank())"), 2
    )


@pytest.mark.varied
@pytest.mark.parametrize(
    "junk, seconds, words",
    [
        ("b'junk' * 99", 20.0, "is not a result"),
        ("b'LKSP' + bytes(99)", 20.0, "is not a result"),
        ("b''", 2.0, "Stopped after 2 seconds"),
    ],
)
def test_forged_frames_are_refused_and_a_closed_socket_times_out(submit, junk, seconds, words):
    source = f"""
        def broken(x):
            data = {junk}
            if data:
                os.write(3, data)
            os.close(3)
            time.sleep(30)
        """
    assert words in verdict(submit(source, wall_seconds=seconds), 1)


@pytest.mark.parametrize(
    "value, words",
    [
        ("10 ** 5000", "a whole number of 16610 bits"),
        ("list(range(400_000))", "a list that cannot be sent"),
        ("torch.zeros(2, device='meta')", "on meta"),
        ("{'a': 1, (1, 2): 3}", "a dict with keys"),
        ("'bad \\ud800 text'", "got str 'bad ? text'"),
    ],
)
def test_what_cannot_be_sent_is_wrong_and_breaks_nothing(submit, value, words):
    assert words in verdict(submit(f"def broken(x): return {value}"), 1)


def test_an_exception_with_text_that_cannot_be_printed(submit):
    message = verdict(submit("def broken(x): raise ValueError('bad \\ud800 text')"), 1)
    assert "raised ValueError: bad ? text" in message


@pytest.mark.parametrize(
    "line, words",
    [
        (
            "dist.distributed_c10d._get_default_store().set('x', 'a')",
            "a value through torch's store.",
        ),
        ("for _ in range(101): dist.barrier(async_op=True)", "more than 100 barriers"),
    ],
)
def test_a_rank_that_communicates_otherwise_was_stopped(submit, on_hub, line, words):
    world = submit(f"""
        def broken(x):
            {line}
            time.sleep(30)
        """)
    message = verdict(world, 1)
    assert f"rank 0 was stopped: it sent {words}" in message and "not a result" not in message


def test_a_rank_that_says_it_is_held_is_not_believed(submit):
    world = submit("""
        def broken(x):
            import gc
            from grader.wire import frames
            from grader.rank.link import Link
            (link,) = [it for it in gc.get_objects() if isinstance(it, Link)]  # it knows the world's nonce
            os.write(3, frames.pack(frames.HELD, {"call": 0}, nonce=link.reader.nonce))
            time.sleep(30)
        """)
    assert "a report of being held, from a rank that has no delay or was released" in verdict(
        world, 1
    )


def test_a_rank_without_a_wire_still_dies(submit):
    world = submit("""
        def broken(x):
            os.close(3)
            os._exit(0)
        """)
    assert "Rank 0 ended its process with exit code 0" in verdict(world, 1)


def test_a_second_result_is_refused(submit):
    world = submit("""
        def broken(x):
            import gc
            from grader.wire import frames
            from grader.rank import tensors
            from grader.rank.link import Link
            (link,) = [it for it in gc.get_objects() if isinstance(it, Link)]
            trees, blob = tensors.encode(x, [x], {})
            for _ in range(2):
                link.send(frames.RETURNED, {"call": 0, "values": trees}, blob)
            return x
        """)
    (run,) = world(1, call("collectives.broken", X))
    assert run.report.ranks[0].refused == "a second result for one call"


def test_a_frame_without_the_nonce_of_its_world_is_refused(submit):
    world = submit("""
        def broken(x):
            from grader.wire import frames
            os.write(3, frames.pack(frames.DONE, {}))
            time.sleep(30)
        """)
    assert "a frame of another world" in verdict(world, 1)


def test_a_rank_that_says_it_is_done_before_it_is(submit):
    world = submit("""
        def broken(x):
            import gc
            from grader.wire import frames
            from grader.rank.link import Link
            (link,) = [it for it in gc.get_objects() if isinstance(it, Link)]
            link.send(frames.DONE, {})
            time.sleep(30)
        """)
    assert "a DONE frame before all calls were made" in verdict(world, 1)


def test_what_a_rank_sends_in_a_world_has_an_end(submit):
    world = submit("def broken(x): return torch.zeros(1 << 20)", sent_bytes=1 << 20)
    assert (
        "sent back something that is not a result: more than 1 MiB in all calls together."
        in verdict(world, 1)
    )


@pytest.mark.long
def test_neither_sleep_nor_work_is_a_deadlock(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                time.sleep(1.2)
            else:
                until = time.process_time() + 0.8
                while time.process_time() < until:
                    pass
            dist.all_reduce(x)
            return x
        """)
    (run,) = world(3, call("collectives.broken", X))
    run.returns(*[3 * X] * 3)


@pytest.mark.long
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux shows what other processes do"
)
def test_waiting_for_a_process_that_computes_is_no_deadlock(submit):
    source = """
        import subprocess
        BUSY = "import time\\nwhile time.process_time() < 3: pass"
        def broken(x):
            if dist.get_rank() == 0:
                subprocess.Popen([sys.executable, "-c", BUSY])
                os.wait()
            dist.all_reduce(x)
            return x
        """
    # A machine may be busy with other work, too, so the limits are high.
    world = submit(source, wall_seconds=200.0, world_seconds=250.0)
    (run,) = world(2, call("collectives.broken", X))
    run.returns(2 * X, 2 * X)


def test_a_deadlock_of_threads(submit):
    """The main thread waits only for another thread. That thread waits for another rank."""
    world = submit("""
        import threading
        def broken(x):
            thread = threading.Thread(target=dist.recv, args=(x, 1 - dist.get_rank()))
            thread.start()
            thread.join()
            return x
        """)
    message = verdict(world, 2)
    assert "Deadlock" in message, message


@pytest.mark.long
def test_a_deadlock_beside_a_busy_thread(submit):
    """The ranks never look idle to the system, but they send nothing and wait in communications."""
    source = """
        import threading
        def work():
            while True:
                sum(range(20_000))
                time.sleep(0.002)
        def broken(x):
            threading.Thread(target=work, daemon=True).start()
            dist.recv(x, 1 - dist.get_rank())
            return x
        """
    assert "Deadlock" in verdict(submit(source, wall_seconds=3.0), 2)


def test_a_late_rank_does_not_wait_for_what_will_not_happen(submit):
    world = submit("def broken(x, compute): return x")
    late = {1: Delay(until="compute began", on=0)}
    (run,) = world(2, call("collectives.broken", X, Probe("compute"), delays=late))
    run.returns(X, X)
    assert not run.marks(0, "compute began")


def test_communication_of_threads_is_recorded(submit):
    world = submit("""
        from concurrent.futures import ThreadPoolExecutor
        def broken(x):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(dist.all_reduce, x).result()
            return x
        """)
    (run,) = world(2, call("collectives.broken", X))
    run.returns(2 * X, 2 * X)
    assert [o.kind for o in run.operations(0)] == ["all_reduce"]


def test_a_thread_that_raises_prints_the_lines_of_its_own_file_alone(submit):
    source = """
        import threading
        def broken(x):
            def work():
                dist.all_reduce(x, op="nonsense")
            thread = threading.Thread(target=work, name="the worker")
            thread.start()
            thread.join()
            dist.all_reduce(x)
            return x
        """
    message = verdict(submit(source), 2)
    assert "the worker raised TypeError: " in message
    assert "collectives.py:10, in work:  dist.all_reduce(x, op=" in message
    assert "Traceback" not in message and "/" not in message.split("Printed")[1]


def test_a_syntax_error_that_names_no_file_is_the_students(submit):
    source = """
        def broken(x):
            raise SyntaxError("mine", (5, 1, 1, "text"))
        """
    message = verdict(submit(source), 1)
    assert "rank 0 raised SyntaxError: mine" in message and "outside" not in message


LEFT_BEHIND = """
import subprocess
def broken(x):
    script = "import os, time; os.fork() or time.sleep(300)"
    for _ in range(3):
        subprocess.Popen([sys.executable, "-c", script, "{token}"], start_new_session=True)
    time.sleep(0.3)
    return x
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lets a parent adopt orphans"
)
def test_nothing_is_left_behind(submit, tmp_path):
    token = f"left-behind-{os.getpid()}-{time.time_ns()}"
    (run,) = submit(LEFT_BEHIND.replace("{token}", token))(2, call("collectives.broken", X))
    run.returns(X, X)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert token not in listing
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _mentions(pid, token)]


def _mentions(pid: str, token: str) -> bool:
    try:
        return token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_world_after_a_bad_one_is_sound(submit):
    world = submit("""
        def broken(x):
            os.kill(os.getppid(), 15) if dist.get_rank() == 0 else time.sleep(30)
        def sound(x):
            dist.all_reduce(x)
            return x
        """)
    said = verdict(world, 2)  # confined ranks may not kill their parent
    assert "rank 0 raised PermissionError" in said or "controls the ranks was ended" in said
    (run,) = world(2, call("collectives.sound", per_rank(X, X)))
    run.returns(2 * X, 2 * X)


def test_who_did_not_object_is_named_and_not_who_did(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                raise ValueError("no such op")
            dist.all_reduce(x)
            return x
        """)
    (run,) = world(3, call("collectives.broken", X, may_raise=True))
    with pytest.raises(
        CheckFailed,
        match="expected a ValueError on every rank, but rank 1 went on to the all-reduce",
    ):
        run.raises_value_error()


def test_a_message_that_names_all_numbers_names_none(submit):
    world = submit("""
        def broken(x, most):
            raise ValueError(f"bad: {list(range(most))}")
        """)
    few, many = world(
        2, *(call("collectives.broken", X, most, may_raise=True) for most in (20, 21))
    )
    few.raises_value_error("7")
    with pytest.raises(
        CheckFailed,
        match="rank 0's ValueError names 21 different numbers: name only those that are wrong",
    ):
        many.raises_value_error("7")


def test_a_check_may_say_what_a_value_error_is_expected_for(submit):
    (run,) = submit("def broken(x): return x")(1, call("collectives.broken", X, may_raise=True))
    with pytest.raises(
        CheckFailed, match=r"on every rank for the schedule \[\], but rank 0 returned a tensor"
    ):
        run.raises_value_error(given="the schedule []")


def test_a_mistake_that_explains_the_whole_value_comes_before_one_that_explains_its_first_part(
    submit,
):
    (run,) = submit("def broken(x): return [2 * x, 3 * x]")(1, call("collectives.broken", X))
    known = {"the first part alone": [2 * X, X], "both parts": [2 * X, 3 * X]}
    with pytest.raises(CheckFailed, match="Likely: both parts"):
        run.returns([X, X], known_mistakes=[known])
    with pytest.raises(CheckFailed, match="Likely: the first part alone"):
        run.returns([X, X], known_mistakes=[{"the first part alone": [2 * X, X]}])


def test_mistakes_are_made_only_where_a_value_is_wrong(submit):
    (run,) = submit("def sound(x): return 2 * x")(1, call("collectives.sound", X))
    run.returns(2 * X, known_mistakes=lambda: pytest.fail("nothing is wrong"))
    with pytest.raises(CheckFailed, match="Likely: doubled"):
        run.returns(X, known_mistakes=lambda: [{"doubled": 2 * X}])


def test_operations_of_different_calls_are_not_held_against_each_other(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.all_gather([torch.empty(4), torch.empty(4)], x)
            return x
        def sound(x):
            dist.all_reduce(x)
            return x
        """)
    run, _ = world(2, call("collectives.broken", X), call("collectives.sound", X))
    with pytest.raises(CheckFailed) as failure:
        run.returns(X, X)
    assert "The ranks disagree" not in str(failure.value)
    assert "rank 1 has already returned" in str(failure.value)
    assert "Likely: rank 1 returned without taking part in the all-gather." in str(failure.value)


def test_a_deadlock_that_polls(submit):
    source = """
        def broken(x):
            work = dist.irecv(x, 1 - dist.get_rank())
            while not work.is_completed():
                time.sleep(0.02)
            return x
        """
    message = verdict(submit(source, wall_seconds=1.5), 2)
    assert "Stopped after 1.5 seconds. The ranks used little processor time" in message
    assert "its receive of 4 × float32 from rank 1 at collectives.py:8 waits for rank 1" in message


@pytest.mark.parametrize("kind, is_told", [("irecv", True), ("all_reduce", False)])
def test_a_rank_that_polls_gets_a_hint_only_about_messages(submit, kind, is_told):
    source = f"""
        def broken(x):
            rank = dist.get_rank()
            sending = dist.isend(x, 1 - rank)
            dist.recv(torch.empty_like(x), 1 - rank)
            sending.wait()
            if rank == 1:
                dist.recv(x, 0)
            if "{kind}" == "irecv":
                work = dist.irecv(x, 1 - rank)
            else:
                work = dist.all_reduce(x, async_op=True)
            while not work.is_completed(): pass
        """
    message = verdict(submit(source, wall_seconds=1.5, cpu_seconds=1.0), 2)
    assert "collectives.py:18:  while not work.is_completed(): pass" in message
    assert ("is_completed() again and again" in message) == is_told


def test_a_send_that_is_missing_is_named(submit):
    world = submit("""
        def broken(x):
            rank, n = dist.get_rank(), dist.get_world_size()
            mine = x.clone()
            sending = dist.isend(mine, (rank + 1) % n) if rank < n - 1 else None
            dist.recv(x, (rank - 1) % n)
            if sending:
                sending.wait()
            return x
        """)
    assert "Likely: rank 2 returned without sending to rank 0." in verdict(world, 3)


def test_a_block_that_does_not_fit_a_receive_without_src_is_named(submit):
    world = submit("""
        def broken(x):
            blocks = torch.arange(7.0).tensor_split(4)
            rank = dist.get_rank()
            if rank:
                dist.send(blocks[rank].clone(), 0)
                return x
            for _ in range(3):
                dist.recv(torch.empty(2))
            return x
        """)
    message = verdict(world, 4)
    assert "The ranks disagree about what is sent:" in message
    assert "rank 3: send of 1 × float32 to rank 0 at collectives.py:11" in message
    assert "rank 0: receive of 2 × float32 from any rank at collectives.py:14" in message
    assert "Likely: the message and rank 0's tensor differ in size." in message
    assert "A receive without src takes the first message that arrives, from any rank." in message


def test_the_sender_of_the_wrong_size_is_named_and_not_the_one_that_waits_behind_it(submit):
    world = submit("""
        def broken(x):
            rank = dist.get_rank()
            if rank == 0:
                dist.barrier()
                dist.recv(torch.empty(4))
                dist.recv(torch.empty(4))
            elif rank == 1:
                sending = dist.isend(torch.ones(2), 0)
                dist.barrier()
                sending.wait()
            else:
                dist.barrier()
                dist.send(x, 0)
            return x
        """)
    message = verdict(world, 3)
    assert "rank 1: send of 2 × float32 to rank 0 at collectives.py:14" in message
    assert "rank 0: receive of 4 × float32 from any rank at collectives.py:11" in message
    assert "no rank receives" not in message


ALL_SEND_FIRST = "Start the send and the receive together, with one dist.batch_isend_irecv."
TOO_MANY = "If all messages have already arrived, remove this send."


@pytest.mark.parametrize("earlier, is_told", [("True", True), ("False", False)])
def test_a_last_send_that_nobody_receives_may_be_one_too_many(submit, earlier, is_told):
    world = submit(f"""
        def broken(x):
            other = 1 - dist.get_rank()
            if {earlier}:
                sending = dist.isend(x, other)
                dist.recv(torch.empty_like(x), other)
                sending.wait()
            dist.send(x, other)
            return x
        """)
    message = verdict(world, 2)
    assert ALL_SEND_FIRST in message
    assert (TOO_MANY in message) == is_told


def test_a_receive_without_src_that_took_another_receives_message_is_named(submit):
    world = submit("""
        def broken(x):
            rank = dist.get_rank()
            if rank == 0:
                dist.recv(x)
                dist.barrier()
                dist.recv(x, 1)
            elif rank == 1:
                dist.send(x, 0)
                dist.barrier()
            else:
                dist.barrier()
                dist.send(x, 0)
            return x
        """)
    message = verdict(world, 3)
    assert "its receive of 4 × float32 from rank 1 at collectives.py:12 waits for rank 1" in message
    assert (
        "Likely: rank 0's receive without src (line 10) took a message from rank 1 (line 14). So the"
        " receive from rank 1 (line 12) gets no message." in message
    )
    assert "A receive without src takes the first message that arrives, from any rank." in message


def test_a_receive_that_names_its_sender_comes_before_one_without_src(submit):
    """gloo gives the message to the same receive."""
    world = submit("""
        def broken(x):
            rank = dist.get_rank()
            if rank == 0:
                a, b = torch.empty_like(x), torch.empty_like(x)
                works = [dist.irecv(a, None), dist.irecv(b, 1)]
                dist.barrier()
                works[1].wait()
                works[0].wait()
                return [a, b]
            dist.barrier()
            if rank == 2:
                dist.recv(torch.empty(1), 1)
            dist.send(x * rank, 0)
            if rank == 1:
                dist.send(torch.ones(1), 2)
            return [x, x]
        """)
    (run,) = world(3, call("collectives.broken", X))
    run.returns([2 * X, X], [X, X], [X, X])


def test_a_forgotten_irecv_that_got_the_message_is_named(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 1:
                work = dist.irecv(torch.empty(4), 0)
                dist.recv(x, 0)
            else:
                dist.send(x, 1)
            return x
        """)
    message = verdict(world, 2)
    assert (
        "Likely: rank 1 started 2 receives from rank 0 (lines 9 and 10), but rank 0 sent only 1"
        " message to rank 1 (line 12) before the function of rank 0 returned." in message
    )
    assert "the earlier receive (line 9) got the message." in message
    assert "returned without sending" not in message


def test_a_send_that_is_still_to_come_is_named(submit):
    world = submit("""
        def broken(x):
            rank = dist.get_rank()
            if rank == 0:
                sending = dist.isend(x.clone(), 1)
                dist.recv(x, 2)
            elif rank == 1:
                dist.recv(x, 0)
                dist.recv(x, 2)
            else:
                dist.recv(x, 1)
            return x
        """)
    assert (
        "Likely: at least one of these sends is missing, or comes too late: from rank 2 to rank 0, from rank 2 to rank 1, from rank 1 to rank 2."
        in verdict(world, 3)
    )


def test_a_world_has_a_limit_too(submit):
    world = submit("def broken(x):\n    time.sleep(0.4)\n    return x", world_seconds=1.0)
    runs = world(1, *[call("collectives.broken", X)] * 9)
    with pytest.raises(CheckFailed, match="Stopped after 1 seconds in all calls together"):
        for run in runs:
            run.returns(X)


def test_paths_of_this_machine_are_not_shown(submit):
    message = verdict(submit("def broken(x): print(torch.__file__, __file__)"), 1)
    assert "torch/__init__.py handout/collectives.py" in message
    assert "site-packages" not in message and "stage" not in message


def test_parameters_that_require_gradients_arrive_as_such(submit):
    world = submit("def broken(x): return [str(x.requires_grad), str(x.is_leaf)]")
    (run,) = world(1, call("collectives.broken", RequiresGrad(X)))
    run.returns(["True", "True"])
    (run,) = world(1, call("collectives.broken", X))
    run.returns(["False", "True"])


def test_a_list_that_is_refilled_is_not_its_tensors(submit):
    world = submit("def broken(xs): xs[:] = [xs[0] + 1]")
    (run,) = world(1, call("collectives.broken", [X]))
    run.leaves_arguments([X], label="the list")


# ——— honest programs that take their time


def test_what_a_library_imports_on_first_use_has_time(submit):
    """``import sympy`` takes more processor time than this call may use.

    It plays what torch imports when a program first uses a part of it.
    """
    world = submit(
        """
        def broken(x):
            import sympy
            return x
        """,
        cpu_seconds=0.1,
    )
    (run,) = world(1, call("collectives.broken", X))
    run.returns(X)


def test_a_module_of_the_students_own_has_no_more_time_than_a_call(submit):
    world = submit(
        """
        def broken(x):
            import importlib
            return importlib.reload(sys.modules[__name__])
        if "torch.distributed" in sys.modules and dist.is_initialized():
            while dist.get_rank() == 0:
                pass
        """,
        cpu_seconds=0.5,
    )
    assert "0.5 seconds of processor time" in verdict(world, 1)


def test_ranks_that_wait_without_an_operation_are_no_deadlock(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.distributed_c10d._get_default_store().wait(["never"])
            return x
        """)
    message = verdict(world, 2)
    assert (
        "All ranks are stuck, although no rank waits in a send, a receive or a collective."
        in message
        and "never" in message
    )
    assert "Deadlock" not in message


def test_a_group_that_a_rank_never_makes_is_told(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                dist.new_group([0, 1])
            return x
        """)
    message = verdict(world, 3)
    assert DEADLOCK in message
    assert "rank 1 never made the group [0, 1], for which rank 0 waited: new_group([0, 1]) at" in (
        message
    )
    assert "All ranks must make all groups in the same order, also groups that they are" in message


ORDERS = {
    "each rank makes its own groups only": "[[r // 2 * 2, r // 2 * 2 + 1], [r % 2, r % 2 + 2]]",
    "another order on each rank": "[[0, 1], [2, 3]][:: 1 - r % 2 * 2]",
    "another group on one rank": "[[0, 1], [1, 2] if r == 3 else [2, 3]]",
}


@pytest.mark.parametrize("groups", ORDERS.values(), ids=ORDERS.keys())
def test_ranks_that_make_different_groups_are_told_so(submit, groups):
    """The hub could carry what the ranks send. But with gloo and nccl the groups would not meet."""
    world = submit(f"""
        def broken(x):
            r = dist.get_rank()
            groups = [dist.new_group(ranks) for ranks in {groups}]
            return x
        """)
    message = verdict(world, 4)
    assert "The ranks disagree about which group they make:" in message
    assert "All ranks must make all groups in the same order, also groups that they are" in message


def test_a_rank_of_the_group_in_place_of_one_of_the_world_is_told(submit):
    world = submit("""
        def broken(x):
            group = dist.new_group([1, 2])
            if dist.get_rank():
                dist.broadcast(x, 0, group=group)
            return x
        """)
    message = verdict(world, 3)
    assert "Global rank 0 is not part of group <process group of the ranks [1, 2]>" in message
    assert "Likely: the call names a rank that is not in the group. src and dst are" in message


def test_a_rank_that_waits_for_a_group_is_not_busy(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() != 1:
                dist.all_reduce(x, group=dist.new_group([0, 1, 2]))
            return x
        """)
    message = verdict(world, 3)
    assert DEADLOCK in message and "busy" not in message


def test_groups_in_different_orders_are_told(submit):
    world = submit("""
        def broken(x):
            r = dist.get_rank()
            rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
            columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
            own = [rows[r // 2], columns[r % 2]]
            for group in own if r in (0, 3) else own[::-1]:
                dist.all_reduce(x, group=group)
            return x
        """)
    message = verdict(world, 4)
    assert (
        "Likely: the ranks use their groups in different orders. Rank 0 waits in the group of"
        " ranks 0 and 1, but rank 1 waits in the group of ranks 1 and 3. Let all ranks"
    ) in " ".join(message.split())


def test_two_groups_of_the_same_ranks_are_told_apart(submit):
    world = submit("""
        def broken(x):
            groups = [dist.new_group([0, 1]) for _ in range(2)]
            for group in groups if dist.get_rank() else groups[::-1]:
                dist.all_reduce(x, group=group)
            return x
        """)
    message = " ".join(verdict(world, 2).split())
    assert "waits in one group of ranks 0 and 1, and rank 1 in another group of the" in message


SPARSE = {
    "all_reduce": "dist.all_reduce(x.to_sparse())",
    "scatter": "dist.scatter(x.to_sparse(), [x, x] if dist.get_rank() == 0 else None)",
    "all_to_all": "dist.all_to_all_single(x.clone(), x.to_sparse())",
    "send": "dist.send(x.to_sparse(), 1 - dist.get_rank())",
}


@pytest.mark.parametrize("line", SPARSE.values(), ids=SPARSE.keys())
def test_a_sparse_tensor_is_refused_in_a_sentence(submit, line):
    message = verdict(submit(f"def broken(x):\n    {line}\n"), 2)
    assert "only dense tensors can be communicated" in message


def test_a_scatter_shows_the_size_of_a_block_on_every_rank(submit):
    world = submit("""
        def broken(x):
            rank, blocks = dist.get_rank(), [x.clone() for _ in range(3)]
            dist.scatter(x[rank // 2:].contiguous(), None if rank else blocks)
            return x
        """)
    message = verdict(world, 3)
    assert "ranks 0, 1: scatter of 4 × float32 with root 0" in message
    assert "rank 2: scatter of 3 × float32 with root 0" in message


def test_whoever_asks_for_ever_whether_a_message_has_come_is_told(submit):
    """With gloo, too, the data arrives, but the work is not completed without a wait."""
    source = """
        def broken(x):
            if dist.get_rank() == 0:
                dist.send(x, 1)
                return x
            work = dist.irecv(x, 0)
            while not work.is_completed():
                pass
            return x
        """
    message = verdict(submit(source, wall_seconds=1.5), 2)
    assert "rank 1 called is_completed() again and again" in message


def test_a_deadlock_in_a_group_names_the_group(submit):
    world = submit("""
        def broken(x):
            groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
            r = dist.get_rank()
            dist.all_reduce(x, group=groups[r // 2] if r < 3 else groups[2 + r % 2])
            return x
        """)
    assert "waits for rank 3, in the group of ranks 2 and 3" in verdict(world, 4)


def test_groups_that_only_their_own_ranks_make_are_no_disagreement(submit):
    world = submit("""
        def broken(x):
            r = dist.get_rank() // 2 * 2
            total = x.clone()
            dist.all_reduce(total, group=dist.new_group([r, r + 1], use_local_synchronization=True))
            return total
        """)
    (run,) = world(4, call("collectives.broken", X))
    run.returns(*[2 * X] * 4)


def test_a_held_rank_is_let_go_where_the_others_wait_for_it_in_no_operation(submit):
    """All ranks must make a new group, also the rank that the check holds back."""
    world = submit("""
        def broken(x, action):
            dist.new_group([0, 1])
            action()
            return x
        """)
    late = {1: Delay(until="action ended", on=0)}
    (run,) = world(2, call("collectives.broken", X, Probe("action"), delays=late))
    run.returns(X, X)


def test_a_deadlock_is_told_as_soon_where_messages_land_at_wait(submit):
    """The driver's code is around the wait, and none of its lines is a line of the student."""
    world = submit(
        """
        def broken(x):
            dist.send(x, 1 - dist.get_rank())
            dist.recv(x, 1 - dist.get_rank())
            return x
        """,
        wall_seconds=5.0,
    )
    (run,) = world(2, call("collectives.broken", X, driver="received_at_wait"))
    with pytest.raises(CheckFailed, match=DEADLOCK) as failure:
        run.returns(X, X)
    assert "rank 0 waits at collectives.py:8:  dist.send(x, 1 - dist.get_rank())" in str(
        failure.value
    )


def test_a_send_and_a_receive_with_other_tags_are_told(submit):
    world = submit("""
        def broken(x):
            rank, n = dist.get_rank(), dist.get_world_size()
            work = dist.isend(x, (rank + 1) % n, tag=rank)
            dist.recv(x.clone(), (rank - 1) % n, tag=rank)
            work.wait()
            return x
        """)
    message = verdict(world, 2)
    assert "its send of 4 × float32 to rank 0 with tag 1 at collectives.py" in message
    assert "sends to rank 0 with tag 1, but rank 0 receives from rank 1 with tag 0" in message
    assert "different branches" not in message


def test_a_rank_that_has_returned_is_named_and_not_the_one_that_polls(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 1:
                return x
            work = dist.all_reduce(x, async_op=True)
            while not work.is_completed():
                pass
            return x
        """)
    message = verdict(world, 2)
    assert "Likely: rank 1 returned without taking part in the all-reduce" in message
    assert "again and again" not in message


def test_equal_exceptions_at_different_lines_are_told_apart(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                [][1]
            else:
                time.sleep(0.05)
                [][1]
        """)
    message = verdict(world, 2)
    assert "rank 0 raised IndexError" in message and "collectives.py:9" in message
    assert "rank 1 raised IndexError" in message and "collectives.py:12" in message


def test_a_check_that_reads_its_second_call_first_tells_what_happened_in_the_first(submit):
    world = submit("""
        def broken(x):
            return x.view(-1) if x.dim() == 1 else x.t().view(-1)
        """)
    table = np.ones((2, 3), np.float32)
    _, second = world(
        2,
        call("collectives.broken", per_rank(table, table)),
        call("collectives.broken", X),
    )
    with pytest.raises(CheckFailed) as caught:
        second.returns(X, X)
    message = str(caught.value)
    assert "broken(float32 (2, 3)) on 2 ranks" in message
    assert "ranks 0 and 1 raised RuntimeError: view size is not compatible" in message
