"""Stage 2, clean: DOCUMENTS become text worth learning, and what is not worth it is dropped by a named rule.

What: a chain of small named edits (mojibake, NFC, control characters, HTML and leftover markup to text, emoji to words,
personal data, repeated lines) and of small named rules with their papers' limits. A preset says which of them a source
goes through. Part i becomes part i.

Papers: Gopher (Rae et al. 2021, appendix A.1), C4 (Raffel et al. 2020, section 2.2), Codex (Chen et al. 2021, section
3.1) and StarCoder (Li et al. 2023) for code.

In -> out: DOCUMENTS -> DOCUMENTS + LEDGER.
"""
