"""The papers' losses as pure functions: tensors in, one scalar out."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Network = Callable[[torch.Tensor], torch.Tensor]  # float32 [n, ...] -> outputs float32 [n, c]
# Outputs as they are, and perturbed -> their sum over rows
Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def generalised_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, q: float, truncation: float = 0.0
) -> torch.Tensor:
    """(1 - max(p_y, truncation)^q) / q for each row: float32 [n]. Of logits float32 [n, c] and
    labels int64 [n] (Zhang and Sabuncu 2018, equations 6 and 9).

    Between cross-entropy (q -> 0) and mean absolute error (q = 1): a row's gradient is damped by
    p_y^q, so a label that the network finds unlikely pulls less; below ``truncation`` (in [0, 1))
    not at all.
    """
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    if truncation > 0:
        log_p = log_p.clamp(min=math.log(truncation))
    return (1 - torch.exp(q * log_p)) / q


def pairs(logits: torch.Tensor) -> torch.Tensor:
    """An attribute's logit z as two classes, absent and present: (0, z); [n, c] -> [n * c, 2].

    Their cross-entropy is the binary cross-entropy of z: after this, every loss here is the mean
    over c attributes.
    """
    flat = logits.reshape(-1)
    return torch.stack([torch.zeros_like(flat), flat], dim=1)


def uda_consistency(
    clean: torch.Tensor, augmented: torch.Tensor, temperature: float, confidence: float
) -> torch.Tensor:
    """Mean over the batch of 1[max p > confidence] KL(sharpened p(clean) || p(augmented)) (Xie et
    al. 2019, equation 1, section 2.2). No gradient flows through ``clean``.
    """
    clean = clean.detach()
    target = (clean / temperature).softmax(dim=1)
    counted = (clean.softmax(dim=1).amax(dim=1) > confidence).float()
    divergence = F.kl_div(augmented.log_softmax(dim=1), target, reduction="none").sum(dim=1)
    return (divergence * counted).mean()


def align(logits: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Logits of p / share, normalised: distribution alignment to equally frequent classes
    (Berthelot et al. 2020, section 3.1).

    ``share``: float32 [c], how often each class has been predicted lately, summing to 1.
    """
    return logits.detach() - torch.log(share * len(share))


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Mean entropy of the predictions, in nats: EntMin (Miyato et al. 2018, section 4)."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1).mean()


def imbalance(logits: torch.Tensor) -> torch.Tensor:
    """log c - H(mean prediction) of a batch, in nats; 0 for classes predicted equally often.

    The other half of mutual information (Hu et al. 2017, IMSAT, section 3.2): entropy alone is also
    least where every input is given the same class, and with few labels VAT ends there.
    """
    mean = logits.softmax(dim=1).mean(dim=0)
    return math.log(logits.shape[1]) + (mean * mean.clamp(min=1e-12).log()).sum()


def kl_divergence(clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Sum over rows of KL(p(clean) || p(moved)); no gradient flows through ``clean``."""
    return F.kl_div(moved.log_softmax(dim=1), clean.detach().softmax(dim=1), reduction="sum")


def squared_difference(clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Sum over rows of |clean - moved|^2: up to a factor the KL divergence of normal laws around
    real-valued outputs.
    """
    return ((moved - clean.detach()) ** 2).sum()


def virtual_adversarial_loss(
    network: Network,
    x: torch.Tensor,
    outputs: torch.Tensor,
    *,
    epsilon: float,
    xi: float,
    directions: torch.Tensor,
    iterations: int = 1,
    divergence: Divergence = kl_divergence,
) -> torch.Tensor:
    """Mean D(f(x), f(x + r_vadv)), |r_vadv| = epsilon (Miyato et al. 2018, equations 5, 6 and 12,
    Algorithm 1).

    ``outputs``: float32 [n, c] of x, constants here; ``directions``: random ones to begin with,
    normal like x; ``iterations``: of the power method. D is least, and flat, where nothing moves.
    """
    direction = _unit(directions)
    for _ in range(iterations):
        direction.requires_grad_()
        (gradient,) = torch.autograd.grad(
            divergence(outputs, network(x + xi * direction)), direction
        )
        direction = _unit(gradient.detach())
    return divergence(outputs, network(x + epsilon * direction)) / len(x)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Each row divided by its L2 norm."""
    return x / x.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, *[1] * (x.ndim - 1))
