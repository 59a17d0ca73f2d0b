"""Muon for the matrices within blocks, AdamW for all else.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/: the momentum of a matrix is made nearly orthogonal
before it becomes a step, so that no direction is left behind. Embeddings, heads, norms and biases are no such maps
between hidden states.
"""

from typing import Any

import torch

from model.config import OptimizerConfig
from model.optimizers.groups import Groups


class MuonWithAdamW:
    """PyTorch's two optimizers over one network, with one state and one list of groups.

    Steps of Muon get the length that AdamW's have (Liu et al. 2025, https://arxiv.org/abs/2502.16982, section 2.2), so
    that one learning rate and one decay suit both.
    """

    def __init__(self, groups: Groups, config: OptimizerConfig) -> None:
        hidden = {id(parameter) for parameter in groups.hidden}
        decay = config.weight_decay
        self._muon = torch.optim.Muon(
            groups.hidden,
            lr=0.0,
            weight_decay=decay,
            momentum=config.momentum,
            nesterov=config.nesterov,
            adjust_lr_fn="match_rms_adamw",
        )
        heads = [parameter for parameter in groups.matrices if id(parameter) not in hidden]
        rest = [{"params": heads, "weight_decay": decay}, {"params": groups.others, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [group for group in rest if group["params"]],
            lr=0.0,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        self.param_groups: list[dict[str, Any]] = [*self._muon.param_groups, *self._adamw.param_groups]
        self.state = self._adamw.state = self._muon.state

    def step(self) -> None:
        """Both take their step."""
        self._muon.step()
        self._adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self._muon.zero_grad(set_to_none)
        self._adamw.zero_grad(set_to_none)
