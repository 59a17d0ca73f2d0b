"""A night: a recipe trained further on what came since, and promoted where the model is no worse for it.

The first night is the whole recipe. Each later one reads files that no night has read, compares their text with what
the nights before kept, goes on from the current model with its vocabulary, and is scored on the text that the first
night set aside. Where the scores are worse beyond chance the current model stays.

Everything that a night does is one recipe, made here and kept with its run: reuse, records and pages are those of any
run.
"""
