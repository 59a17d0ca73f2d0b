"""The objective of T5: how surprised the network is by the spans that were taken out, sentinels and end included."""

import torch
from torch import Tensor

from model.loader import SpanBatch
from model.objective import nats_in_pieces
from model.t5 import T5


def span_nats(network: T5, batch: SpanBatch) -> tuple[Tensor, Tensor]:
    """Sum of -ln p over the decoder's targets (f32[], differentiable), and the thermometers.

    These are `t5.thermometer_names` in order. A z-loss is in the gradient of the sum and not in its value.
    """
    heat: list[Tensor] = []
    encoded_BTD = network.encode(batch.inputs_BT, batch.is_token_BT, heat)
    hidden_BUD = network.decode(batch.decoder_inputs_BU, encoded_BTD, batch.is_token_BT, heat)
    hidden_ND, targets_N = hidden_BUD.flatten(0, 1), batch.targets_BU.flatten()
    nats, logit_heat = nats_in_pieces(network.logits, hidden_ND, targets_N, network.config.z_loss)
    return nats, torch.stack([*heat, logit_heat])
