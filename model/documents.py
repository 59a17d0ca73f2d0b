"""Which document each token of a packed row belongs to, found from the end-of-text tokens that close them.

As an input, the end-of-text token belongs to the document that it opens: it is what the first token of a document is
predicted from, in a row as where a text is scored alone. Shapes: B rows, T inputs a row.
"""

import torch
from torch import Tensor


def documents_of(inputs_BT: Tensor, eos: int) -> Tensor:
    """The number of each token's document within its row, i32[B, T], from 0."""
    return (inputs_BT == eos).cumsum(1, dtype=torch.int32)


def positions_in_documents(inputs_BT: Tensor, eos: int) -> Tensor:
    """Tokens between each token and the beginning of its document, i32[B, T]; the row's first token counts as one."""
    place = torch.arange(inputs_BT.shape[1], dtype=torch.int32).expand_as(inputs_BT)
    return place - torch.where(inputs_BT == eos, place, 0).cummax(1).values


def of_same_document(documents_BT: Tensor) -> Tensor:
    """Which tokens belong to each token's document, bool[B, 1, T, T]."""
    return (documents_BT[:, :, None] == documents_BT[:, None, :])[:, None]


def visible_within_documents(documents_BT: Tensor) -> Tensor:
    """What each token may attend to, bool[B, 1, T, T]: itself and what stands before it in its document."""
    return of_same_document(documents_BT).tril()


def visible_with_prefix(prefix_B: Tensor, length: int) -> Tensor:
    """What each token of a prefix language model attends to, bool[B, 1, T, T]: the first `prefix_B` tokens of its row,
    itself and what stands before it (Raffel et al. 2020, section 3.2.1)."""
    place = torch.arange(length, device=prefix_B.device)
    of_prefix_BT = place < prefix_B[:, None]
    return (of_prefix_BT[:, None, :] | (place <= place[:, None]))[:, None]
