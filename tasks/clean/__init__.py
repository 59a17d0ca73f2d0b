"""Stage 2, clean: repair and strip documents of raw text, and drop those not worth training on, each by a named rule.

A chain of small named edits (mojibake, NFC, control characters, HTML and leftover markup to text, emoji to words,
personal data, repeated lines) and of small named rules with the limits of their papers. A preset names those that a
document goes through; by default its kind of text does (`kinds.py`). Part i of the input becomes part i of the output.

CONTRIBUTING.md says how a rule or an edit is added.

Papers: Gopher (Rae et al. 2021, appendix A.1), C4 (Raffel et al. 2020, section 2.2), FineWeb (Penedo et al. 2024,
section 3), Codex (Chen et al. 2021, section 3.1) and StarCoder (Li et al. 2023) for code.

In -> out: DOCUMENTS -> DOCUMENTS + LEDGER.
"""
