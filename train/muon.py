"""Muon (Jordan et al., 2024): each momentum matrix is replaced by the nearest semi-orthogonal one.

For the square-ish hidden matrices of the transformer only; everything else (embeddings, norms, tables,
biases, first and last layers) belongs to AdamW. Matrices of one shape are stacked, so a step is a few batched
products however many layers there are.
"""

import torch
from torch import Tensor


def orthogonalise(g: Tensor, iterations: int = 5) -> Tensor:
    """Pushes the singular values of each matrix of g [n, r, c] towards 1 by a quintic Newton-Schulz iteration
    in BF16; its coefficients trade exactness (values land in about [0.7, 1.2]) for speed."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.02):
        by_shape: dict[torch.Size, list] = {}
        for p in parameters:
            by_shape.setdefault(p.shape, []).append(p)
        super().__init__(
            [{"params": ps} for ps in by_shape.values()],
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
        )

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            ps = group["params"]
            grads = torch.stack([p.grad for p in ps])
            state = self.state[ps[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            average = state["momentum"]
            average.lerp_(grads, 1 - group["momentum"])
            update = orthogonalise(grads.lerp(average, group["momentum"]))
            rows, columns = ps[0].shape
            rate = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(ps, list(update.to(ps[0].dtype).unbind()), alpha=-rate)
