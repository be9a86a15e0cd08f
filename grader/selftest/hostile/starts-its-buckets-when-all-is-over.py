"""Starts its all-reduces when the backward pass is over, a moment before whoever called it is told so.

threat: 24
part: data_parallel
extends: solutions
some: 3.5
says: gives the first parameter no gradient in this backward pass
seconds: 60
"""


class GradientBuckets(GradientBuckets):
    """Right, and nothing overlaps: all gradients are there when the first all-reduce begins."""

    def _reset(self):
        super()._reset()
        self.is_waiting = False

    def _ready(self, parameter):
        self.pending[self.bucket_of[parameter]] -= 1
        if not self.is_waiting:
            self.is_waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self._at_last)

    def _at_last(self):
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
            self._start_next()
