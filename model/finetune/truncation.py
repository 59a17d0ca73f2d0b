"""What did not fit: counted for each task, never cut in silence."""

from dataclasses import dataclass, field


@dataclass
class Truncation:
    """Examples and tokens of one task and one file, and those that were cut off."""

    examples: int = 0
    tokens: int = 0
    cut_examples: int = 0
    lost_tokens: int = 0
    unusable: dict[str, int] = field(default_factory=dict)
    """Examples that nothing is learnt from, by reason."""

    def count(self, tokens: int, kept: int) -> None:
        """One example of `tokens` tokens, of which `kept` are read."""
        self.examples += 1
        self.tokens += tokens
        self.cut_examples += kept < tokens
        self.lost_tokens += tokens - kept

    def leave_out(self, reason: str) -> None:
        """One example that nothing is learnt from."""
        self.unusable[reason] = self.unusable.get(reason, 0) + 1

    def told(self) -> str:
        """One sentence without its full stop."""
        cut = f"{self.cut_examples:,} of {self.examples:,} examples cut"
        if self.cut_examples:
            share = self.lost_tokens / self.tokens
            cut += f" ({self.cut_examples / self.examples:.1%}), {self.lost_tokens:,} tokens lost ({share:.1%})"
        return "; ".join([cut, *(f"{count:,} {reason}" for reason, count in sorted(self.unusable.items()))])


def fit_together(lengths: list[int], room: int) -> list[int]:
    """How many tokens of each text are read where all together have `room`: the longest is cut first (Devlin et al.
    2019's program, `_truncate_seq_pair`)."""
    kept = list(lengths)
    while (over := sum(kept) - room) > 0:
        longest = max(range(len(kept)), key=kept.__getitem__)
        second = max([0, *(length for place, length in enumerate(kept) if place != longest)])
        kept[longest] -= max(1, min(over, kept[longest] - second))
    return kept
