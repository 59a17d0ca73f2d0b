"""Nightly runs: a recipe trained further on new data on a schedule, and promoted where the model is no worse for it.

The first nightly run is the whole recipe. Each later one reads files that no nightly run has read, removes text that
earlier ones kept, continues from the current model with its vocabulary, and is scored on the text that the first one
held out. Where the scores are significantly worse, the current model stays.

Everything that a nightly run does is one recipe, derived here and kept with its run; reuse, records and pages are those
of any run. In code and on disk a nightly run is a `Night`.
"""
