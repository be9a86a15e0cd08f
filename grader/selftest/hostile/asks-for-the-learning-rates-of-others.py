"""Holds the whole state of the optimizer on every rank, and gathers the learning rates of the ranks
to update all shards with them.

threat: 24
part: sharded_data_parallel
extends: solutions
control: 6.1
some: 6.2
says: One reduce-scatter and one all-gather for each step are enough
seconds: 60
"""


class ZeroAdamW:
    def __init__(self, weights, lr=1e-3):
        self.weights, n = weights, dist.get_world_size()
        self.flat = flatten(weights)
        self.all = [torch.optim.AdamW([part], lr=lr) for part in self.flat.chunk(n)]
        self.optimizer = self.all[dist.get_rank()]

    def step(self, gradients):
        n = dist.get_world_size()
        if len(gradients) != len(self.weights):
            raise ValueError(f"{len(gradients)} gradients for {len(self.weights)} weights")
        for i, (gradient, weight) in enumerate(zip(gradients, self.weights)):
            if gradient.shape != weight.shape:
                own, due = tuple(gradient.shape), tuple(weight.shape)
                raise ValueError(f"gradient {i} is {own}, weight {i} is {due}")
        whole = flatten(gradients)
        dist.all_reduce(whole)
        rates = torch.empty(n, dtype=torch.float64)
        own = torch.tensor([self.optimizer.param_groups[0]["lr"]], dtype=torch.float64)
        dist.all_gather(list(rates.chunk(n)), own)
        for optimizer, gradient, rate in zip(self.all, (whole / n).chunk(n), rates.tolist()):
            (group,) = optimizer.param_groups
            group["lr"], group["params"][0].grad = rate, gradient
            optimizer.step()
        shapes = [weight.shape for weight in self.weights]
        for weight, values in zip(self.weights, unflatten(self.flat, shapes)):
            weight.copy_(values)
