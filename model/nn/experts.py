"""A mixture of experts: an MLP in several copies, of which each token uses a few (Shazeer et al. 2017).

A router gives each token a probability for each expert. The most likely ones compute, weighted by their probabilities
over the sum of these, as in Mixtral (Jiang et al. 2024, section 2.1), or by the probabilities themselves, as in OLMoE
(Muennighoff et al. 2024, section 2). Experts have no capacity, so that no token is left out (MegaBlocks, Gale et al.
2022): rows are sorted by expert, and one product for each expert takes its rows.

Shapes: B rows, T tokens a row, N = B T, D width, F hidden size, E experts, K experts of a token, S = N K.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config.block import Activation, BlockConfig, is_gated


class Experts(nn.Module):
    """All experts of a block, and their router. Weights have inputs before outputs, since products take them so."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        assert config.experts is not None, "the MLP has experts"
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        if is_gated(config.activation):
            self.mlp_gate = nn.Parameter(torch.empty(config.experts, config.width, config.hidden))
        self.mlp_in = nn.Parameter(torch.empty(config.experts, config.width, config.hidden))
        self.mlp_out = nn.Parameter(torch.empty(config.experts, config.hidden, config.width))
        self.product = grouped_product
        """Replaced where there are only shapes."""

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the experts add to each token, f32[B, T, D], and the balance f32[] of `balance_loss`."""
        x_ND = x_BTD.flatten(0, 1)
        # In float32: near ties would be decided by rounding.
        probability_NE = self.router(x_ND).float().softmax(-1)
        weight_NK, expert_NK = probability_NE.topk(self.config.experts_per_token)
        if self.config.experts_sum_to_one:
            weight_NK = weight_NK / weight_NK.sum(-1, keepdim=True)
        is_of_SE = expert_NK.flatten()[:, None] == torch.arange(len(self.mlp_in), device=x_ND.device)
        count_E = is_of_SE.sum(0)
        end_E = count_E.cumsum(0).to(torch.int32)
        order_S = expert_NK.flatten().argsort(stable=True)
        out_SD = self._mlp(x_ND.index_select(0, order_S // expert_NK.shape[1]), end_E)
        out_NKD = out_SD.index_select(0, order_S.argsort()).view(*expert_NK.shape, -1)
        summed_ND = (out_NKD * weight_NK[..., None].to(out_NKD.dtype)).sum(1)
        return summed_ND.view_as(x_BTD), balance_loss(probability_NE, count_E)

    def _mlp(self, x_SD: Tensor, end_E: Tensor) -> Tensor:
        activation = self.config.activation
        hidden_SF = self.product(x_SD, self.mlp_in, end_E)
        if is_gated(activation):
            hidden_SF = apply_activation(self.product(x_SD, self.mlp_gate, end_E), activation) * hidden_SF
        else:
            hidden_SF = apply_activation(hidden_SF, activation)
        return self.product(hidden_SF, self.mlp_out, end_E)


def balance_loss(probability_NE: Tensor, count_E: Tensor) -> Tensor:
    """Return E sum_e f_e P_e, f32[], with f_e the share of rows that expert e computes and P_e its mean probability.

    It is 1 where all experts are used alike, and E where all tokens use one (Fedus et al. 2022, Switch Transformer,
    equations 4 to 6). Only P has a gradient.
    """
    share_E = count_E / count_E.sum()
    return len(count_E) * (share_E * probability_NE.mean(0)).sum()


def grouped_product(x_SI: Tensor, weight_EIO: Tensor, end_E: Tensor) -> Tensor:
    """Return the rows of each expert times its matrix; the rows of expert e end at `end_E[e]`."""
    kind = x_SI.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x_SI, weight_EIO = x_SI.to(dtype), weight_EIO.to(dtype)
    return F.grouped_mm(x_SI, weight_EIO, offs=end_E)


def apply_activation(x: Tensor, activation: Activation) -> Tensor:
    """Apply the non-linearity, without the product of a gate."""
    if activation == "relu":
        return F.relu(x)
    if activation == "swiglu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation.endswith("tanh") else "none")
