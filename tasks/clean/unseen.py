"""The kernel behind the edit that removes characters which nobody can see."""

from tasks.clean.characters import UNSEEN, decode, flags_of
from tasks.clean.texts import REWRITTEN, SAME, TOO_HARD
from tasks.kernels import kernel

_ESCAPE = 0x1B
_JOINERS = (0x200C, 0x200D)
_TAGS = 0xE0000
_UNASSIGNED = 0x2065
"""Among the invisible ones, and no character: it stays."""
_KEPT, _REMOVED, _LINE_BREAK, _HARD = range(4)


@kernel
def _fate(codepoint, flags):
    if flags & UNSEEN == 0 or codepoint == _UNASSIGNED:
        return _KEPT
    if 0x0B <= codepoint <= 0x0D or codepoint == 0x85 or codepoint == 0x2028 or codepoint == 0x2029:
        return _LINE_BREAK
    if codepoint == _ESCAPE or codepoint == _JOINERS[0] or codepoint == _JOINERS[1] or codepoint >= _TAGS:
        return _HARD
    return _REMOVED


@kernel
def write_seen(data, begins, ends, outcomes, place, table):
    """Leave out characters that nobody can see, and make line breaks line feeds; as `Texts.rewrite` wants it.

    Too hard are terminal escapes, joiners and tags, which need a look at their neighbours.
    """
    for text in range(len(begins)):
        first = place
        position = begins[text]
        outcome = SAME
        while position < ends[text]:
            while position < ends[text] and 0x20 <= data[position] < 0x7F:
                data[place] = data[position]
                place += 1
                position += 1
            if position == ends[text]:
                break
            codepoint, following = decode(data, position)
            fate = _fate(codepoint, flags_of(codepoint, table))
            if fate == _KEPT:
                for byte in range(position, following):
                    data[place + byte - position] = data[byte]
                place += following - position
            elif fate == _LINE_BREAK:
                data[place] = 10
                place += 1
                if following < ends[text] and data[following] == 10:
                    following += 1
                outcome = REWRITTEN
            elif fate == _HARD:
                outcome = TOO_HARD
                break
            else:
                outcome = REWRITTEN
            position = following
        outcomes[text] = outcome
        if outcome == REWRITTEN:
            begins[text], ends[text] = first, place
        else:
            place = first
