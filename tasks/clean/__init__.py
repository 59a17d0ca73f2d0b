"""Stage 2, clean: repair and strip documents of raw text, and drop those not worth training on, each by a named rule.

A chain of small named edits (mojibake, NFC, control characters, HTML and leftover markup to text, emoji to words,
personal data, repeated lines) and of small named rules with the limits of their papers. A preset names those that a
document goes through; by default its kind of text does (`kinds.py`). Part i of the input becomes part i of the output.

To add a rule:
1. Declare it in `rules.py`, where it shall run: name, limit, and measure (batch -> a value for each document). Recipes
   may then name it in `rules` and `add`.
2. Add its name to a preset in `presets.PRESETS`, where that preset shall use it.

An edit is added likewise: a function `(text, context) -> text` in `edits/`, a line in `edits/registry.py`, its name in
`presets.EDITS`.

Papers: Gopher (Rae et al. 2021, appendix A.1), C4 (Raffel et al. 2020, section 2.2), FineWeb (Penedo et al. 2024,
section 3), Codex (Chen et al. 2021, section 3.1) and StarCoder (Li et al. 2023) for code.

In -> out: DOCUMENTS -> DOCUMENTS + LEDGER.
"""
