"""Builds attention problems so large that the system can measure how much memory ranks need."""

import numpy as np

from grader.check.api import OVERWRITTEN_ALLOWED_BYTES, imports_note
from grader.hidden.sequence_problem import SharedCalls
from grader.reference import attention

MIB = 2**20
MOST_BLOCKS = 5  # blocks of scores at a time, as the docstring of ring_attention_forward says
OWN_BLOCKS = 3.5  # the memory of queries, keys, values, sums and the network, in blocks of scores
# A rank may hold this many tensors (T/n, d) in addition to its arguments when it communicates.
# The functions' docstrings allow 8 forward and 12 backward. Messages take about 5 more, in the
# buffers of the network, and inherited memory that a rank writes to takes about 2. We measured 7 to
# 12 forward and 10 to 18 backward for right programs. A program that collected the keys of all 12
# ranks, and passed the values on, held 15.6 forward.
FORWARD, BACKWARD = 13, 20
# Memory for imports is not counted, up to the size of ``LIGHT`` tensors or ``IMPORTED_BLOCKS``
# blocks. These limits are low, because a wrong program could take memory in the first call for no
# reason, and free it before the measured call. If a submission needs more memory for its imports,
# the check uses larger tensors. Then memory of up to ``IMPORTED`` such tensors is not counted.
LIGHT, IMPORTED, IMPORTED_BLOCKS = 0.5, 1.6, 3.2
# The number of ranks that ``LargeAttention.is_light`` leaves out. These ranks use the most memory
# for imports.
SPARED = 2


class LargeAttention(SharedCalls):
    """Queries, keys and values of a sequence, and the gradient of the output.

    No two rows are equal, so no rank can save memory by storing equal rows only once.
    """

    def __init__(self, rng, n, rows, width, causal):
        self.n, self.rows, self.causal, self.dtype, self.mixed = n, rows, causal, np.float64, False
        self.tensors = tuple(rng.standard_normal((rows * n, width)) for _ in range(4))
        self.shard_bytes = self.tensors[0].nbytes // n
        self.block_bytes = rows * rows * 8
        # The check compares only these rows of each rank.
        self.sample = np.sort(rng.choice(rows, min(rows, 8), replace=False))

    def there_and_back(self, **options):
        shards = [np.split(tensor, self.n) for tensor in self.tensors]
        options |= {"driver": "there_and_back"}
        return self.request("ring_attention_forward", *shards, plain=(self.causal,), **options)

    def has_results(self, run):
        """Fail if a result has a wrong shape, or if one of its rows in the sample is wrong."""
        rows = np.concatenate([rank * self.rows + self.sample for rank in range(self.n)])
        self._has(
            run,
            attention.some_rows(*self.tensors[:3], rows, self.causal),
            lambda r: r[:2],
            "(output, logsumexp)",
        )
        self._have_shapes(run)

        def whole(result):
            output, logsumexp = result[:2]
            return output.reshape(self.rows, -1), logsumexp.reshape(self.rows)

        forwarded = zip(*run.read(whole, "(output, logsumexp)"))
        output, logsumexp = (np.concatenate(of_ranks) for of_ranks in forwarded)
        self._has(
            run,
            attention.some_gradients(self.tensors, (output, logsumexp), rows, self.causal),
            lambda r: r[2:],
            "(grad_q, grad_k, grad_v)",
        )

    def _have_shapes(self, run):
        """Fail if a result has a wrong shape. A sample of rows does not show the whole shape."""
        rows, width = self.rows, self.tensors[0].shape[1]
        wanted = {"output": (rows, width), "logsumexp": (rows,)}
        wanted |= dict.fromkeys(("grad_q", "grad_k", "grad_v"), (rows, width))
        found = run.read(lambda result: [part.shape for part in result], "the tensors")
        for rank, shapes in enumerate(found):
            for (name, shape), got in zip(wanted.items(), shapes):
                run.require(
                    got == shape,
                    f"{name} is wrong on rank {rank}: expected shape {shape}, got {got}",
                )

    def _has(self, run, of_rows, select, label):
        run.returns(
            *zip(*(np.split(part, self.n) for part in of_rows)),
            tolerance=self.tolerance,
            select=lambda r: tuple(part[self.sample] for part in select(r)),
            label=f"a sample of rows of {label}",
        )

    def is_light(self, of_tiny):
        """Return whether the submission's imports take little memory.

        ``of_tiny`` is a call with tiny arguments, which needs hardly any memory besides imports.
        """
        return all(
            of_tiny.own_growth(rank) <= LIGHT * self.shard_bytes
            and of_tiny.overwritten(rank) <= OVERWRITTEN_ALLOWED_BYTES
            for rank in sorted(range(self.n), key=of_tiny.own_growth)[:-SPARED]
        )

    def hold_too_many(self, run, of_tiny, imported):
        """Return a pair for each rank that held too many tensors (T/n, d) when it communicated.

        The first item of a pair is the number of tensors divided by the limit. The second item is a
        sentence. A rank that collects the keys of all ranks, or the values of all ranks, exceeds
        the limit. Memory for imports is not counted, up to the size of ``imported`` tensors.
        """
        found, forward, backward = [], [], []
        imported *= self.shard_bytes
        for rank in range(self.n):
            run.require_grown(rank, self.shard_bytes, "one rank's keys")
            turn = run.issued_before(rank, "backward began")
            forward.append(run.grown_since(of_tiny, rank, imported, turn, overwritten_again=0) or 0)
            backward.append(run.grown_since(of_tiny, rank, imported, overwritten_again=0) or 0)
        for way, grown, most in (("forward", forward, FORWARD), ("backward", backward, BACKWARD)):
            for rank in range(self.n):
                tensors = grown[rank] / self.shard_bytes
                text = (
                    f"according to the operating system, rank {rank}'s process held"
                    f" {grown[rank] / MIB:.2f} MiB in addition to its arguments when it"
                    f" communicated in the {way} pass. A tensor (T/{self.n}, d) has"
                    f" {self.shard_bytes / MIB:.2f} MiB, so this is as much as {tensors:.1f} such"
                    f" tensors. At most {most} are allowed: those of the docstring, and what the"
                    " network and the system need."
                )
                likely = (
                    "Does a rank collect the keys or the values of all ranks? Use a block when it"
                    " arrives, pass it on, and free it. Or does the rank keep copies, for example"
                    " those that torch.stack or torch.cat makes for one message?"
                )
                if tensors > most:
                    note = imports_note(of_tiny.own_growth(rank), imported)
                    found.append((tensors / most, f"{text} {likely}{note}"))
        return found

    def has_few_scores(self, run, of_tiny):
        """Fail if a rank ever held more than a few blocks of scores at a time."""
        for rank in range(self.n):
            # torch's kernel computes a block in tiles. We measured that the tiles take a quarter of
            # a block. Pages of the kernel's code took one more block, but the system might not
            # count these pages.
            part = f"the scores of one eighth of a (T/{self.n}, T/{self.n}) block"
            run.require_grown(rank, self.block_bytes // 8, part)
            left_out = IMPORTED_BLOCKS * self.block_bytes
            grown = run.grown_since(of_tiny, rank, left_out) or 0
            blocks = grown / self.block_bytes
            text = (
                f"according to the operating system, rank {rank}'s process held up to"
                f" {grown / MIB:.1f} MiB. A block of scores, (T/{self.n}, T/{self.n}), has"
                f" {self.block_bytes / MIB:.2f} MiB, so this is as much as {blocks:.1f} blocks. At"
                f" most {MOST_BLOCKS} are needed at a time."
            )
            likely = "Did you make a matrix of the scores of all keys, or keep old blocks?"
            likely += imports_note(of_tiny.own_growth(rank), left_out)
            run.require(blocks <= MOST_BLOCKS + OWN_BLOCKS, f"{text} {likely}")
