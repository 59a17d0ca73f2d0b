"""Settings of the clean stage: presets by source, limits, what emoji become, what is denied, what the user brings."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME, Reach
from tasks.clean.document import CODE, KindName
from tasks.clean.presets import EDIT_LIMITS, EDITS, LANGUAGES
from tasks.clean.rules import RULES
from tasks.common.config import StrictConfig
from tasks.execution.machines import Machines

PresetName = Literal["auto", "gopher", "c4", "fineweb", "code", "minimal"]

_KINDS_OF_FORMATS: dict[str, KindName] = {CODE: "code", "html": "web_page", "wikitext": "markup"}


class DenyConfig(StrictConfig):
    """What must not be learned from: documents of these domains, ids or hashes are dropped, whatever else they are."""

    path: Annotated[str | None, RUNTIME, Reach.FILE] = None
    """File of lines `domain example.org`, `id HEX` or `hash HEX`; its entries decide the result, not its path."""

    domains: tuple[str, ...] = ()
    """Hosts, with all their subdomains; they are compared with the documents' URLs (`url_field` of the source)."""

    ids: tuple[str, ...] = ()
    """Document ids, as 32 hexadecimal digits."""

    hashes: tuple[str, ...] = ()
    """BLAKE3-128 of texts, as read or as cleaned, as 32 hexadecimal digits."""

    @property
    def is_used(self) -> bool:
        """Return whether anything may be denied."""
        return bool(self.path or self.domains or self.ids or self.hashes)


class WordListConfig(StrictConfig):
    """A list of words; a document in which their share is above the limit is dropped under the rule `words_NAME`."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,40}$")
    """Name of the list."""

    path: Annotated[str, RUNTIME, Reach.FILE]
    """Text file, an entry a line: a word, or a phrase of several."""

    limit: float = Field(default=0.0, ge=0, le=1)
    """Largest share of the document's words that may be on the list (0 to 1)."""


class ClassifierConfig(StrictConfig):
    """A classifier of texts, such as for toxicity; a document on the wrong side of the limit is dropped under the rule
    `classifier_NAME`. It comes from a file, or is trained on texts with labels, or on sources of the recipe."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,40}$")
    """Name of the classifier."""

    path: Annotated[str | None, RUNTIME, Reach.FILE] = None
    """Model file: a supervised model of fastText (`.bin`, not quantised) or a linear model (`.safetensors`: `weight`
    over this program's hashed features, `bias`). Its contents decide the result, not its path."""

    labels: Annotated[str | None, RUNTIME, Reach.FILE] = None
    """Instead of a model: a file of JSON lines with `text` and `label`, on which one is trained."""

    good: tuple[str, ...] = ()
    """Instead of a file: sources whose documents the model learns to score high."""

    bad: tuple[str, ...] = ()
    """Sources whose documents it learns to score low."""

    label: str | None = Field(default=None, min_length=1, max_length=200)
    """The label whose probability is the score, as the file names it (`__label__` may be left out)."""

    limit: float = Field(ge=0, le=1)
    """Limit of the score (0 to 1)."""

    keep: Literal["above", "below"] = "below"
    """Which side of the limit is kept: `below` for toxicity, `above` for quality."""

    documents: int = Field(default=20_000, ge=100, le=10_000_000)
    """Documents of `good` and of `bad` sources to learn from, at most."""

    seed: int = Field(default=0, ge=0)
    """Decides which documents it learns from, and in which order."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> "ClassifierConfig":
        origins = [bool(self.path), bool(self.labels), bool(self.good or self.bad)]
        if sum(origins) != 1 or bool(self.good) != bool(self.bad):
            raise ValueError(
                f"classifier `{self.name}` needs one of `path` (a model), `labels` (texts with labels), or `good` and"
                " `bad` (sources)"
            )
        if bool(self.label) == origins[2]:
            wanted = "takes no label: the score is that of `good`" if origins[2] else "needs the `label` that it scores"
            raise ValueError(f"classifier `{self.name}` {wanted}")
        return self


class SpellingConfig(StrictConfig):
    """A list of misspellings and their corrections."""

    path: Annotated[str, RUNTIME, Reach.FILE]
    """Text file, a line `wrong TAB right` each; its pairs decide the result, not its path."""

    language: str | None = None
    """ISO 639-1 code of the documents to correct; without one, all documents."""


class ExtensionsConfig(StrictConfig):
    """Your own edits and rules: Python functions, named `module:function`.

    An edit is `(text, context) -> text`, a rule `(text, context) -> reason or None`, or a
    `tasks.clean.filters.rule.Rule` with its limit in `limits`.
    """

    path: Annotated[str, RUNTIME, Reach.CODE]
    """Folder of the modules, such as `{recipe}`; their code decides the result, not the path."""

    edits: tuple[str, ...] = ()
    """Edits that run after those of the preset; `clean.edits` may name them elsewhere in the order."""

    rules: tuple[str, ...] = ()
    """Rules that run after those of the preset."""


class QualityConfig(StrictConfig):
    """A classifier that learns from good sources and keeps of the rest what is like them (Brown et al. 2020, appendix
    A)."""

    good: tuple[str, ...] = Field(min_length=1)
    """Sources of good text; they are kept whole."""

    alpha: float = Field(default=9.0, gt=0, le=100)
    """Shape of the Pareto distribution: a document is kept when a draw from it is above 1 - score."""

    documents: int = Field(default=20_000, ge=100, le=10_000_000)
    """Documents of each class to learn from, the same number of each source: rounded up, or all that it has."""

    seed: int = Field(default=0, ge=0)
    """Decides which documents it learns from, in which order, and the draws."""


class CleanConfig(StrictConfig):
    """Presets, limits and switches of the chain."""

    preset: PresetName = "auto"
    """Edits and rules: `auto` for those of each document's kind, or one of `gopher`, `c4`, `fineweb`, `minimal` (repair
    only) and `code` for all documents that are not of the format code."""

    presets: Annotated[dict[str, PresetName], EXPERT] = Field(default_factory=dict)
    """Source name -> preset, for sources that need another one; documents of the format code use `code` by default."""

    kinds: dict[str, KindName] = Field(default_factory=dict)
    """Source name -> kind of its texts, where it should not be recognised: `prose`, `documentation`, `code`, `chat`,
    `question_answer`, `verse`, `table`, `maths`, `web_page` or `markup`."""

    edits: Annotated[tuple[str, ...] | None, EXPERT] = None
    """Edits in the order in which they run, instead of those of the presets (`[]` for none); null for the presets'.
    `html_to_text` always runs first where any are listed."""

    rules: Annotated[tuple[str, ...] | None, EXPERT] = None
    """Rules in the order in which they run, instead of those of the presets (`[]` for none); null for the presets'."""

    limits: dict[str, float] = Field(default_factory=dict)
    """Name of a rule or edit -> limit in its own unit, instead of the limit of its paper."""

    add: tuple[str, ...] = ()
    """Edits and rules in addition to those of the preset, such as `homoglyphs`, `source_tag` or `c4_curly_bracket`."""

    without: tuple[str, ...] = ()
    """Edits and rules of the preset to leave out."""

    extensions: Annotated[ExtensionsConfig | None, EXPERT] = None
    """Your own edits and rules."""

    html_extractor: Annotated[Literal["trafilatura", "resiliparse"], EXPERT] = "trafilatura"
    """Extractor of the main text of web pages: `trafilatura`, which keeps less boilerplate, or `resiliparse`, about
    fifteen times as fast."""

    emoji: Annotated[Literal["keep", "name", "drop"], EXPERT] = "name"
    """What becomes of emoji, emoticons and codes for them: kept, replaced by their name in the document's language, or
    removed."""

    languages: tuple[str, ...] = ()
    """ISO 639-1 codes of the languages to keep, by identification; empty for all. Norwegian (`no`) is Bokmål (`nb`) and
    Nynorsk (`nn`)."""

    deny: Annotated[DenyConfig, EXPERT] = DenyConfig()
    """Documents that are always dropped."""

    word_lists: Annotated[tuple[WordListConfig, ...], EXPERT] = ()
    """Lists of words that must not be frequent in a document; none by default."""

    classifiers: Annotated[tuple[ClassifierConfig, ...], EXPERT] = ()
    """Classifiers of texts, such as for toxicity or quality; none by default."""

    spelling: Annotated[tuple[SpellingConfig, ...], EXPERT] = ()
    """Lists of misspellings to correct; none by default."""

    quality: Annotated[QualityConfig | None, EXPERT] = None
    """A quality classifier, trained in this stage; none by default."""

    keep: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose quality classifier is used instead of training one; null trains."""

    wipe_out_limit: Annotated[float, RUNTIME, EXPERT] = Field(default=0.9, gt=0, le=1)
    """Largest share of a source's documents that may be dropped (0 to 1) before the stage stops. Sources of fewer than
    100 documents are not guarded; the run's terminal summary and page name a source that ends empty."""

    wipe_out_overrides: Annotated[dict[str, float], RUNTIME, EXPERT] = Field(default_factory=dict)
    """Source name -> its own drop-rate limit (0 to 1)."""

    workers: Annotated[int, RUNTIME, EXPERT] = Field(default=1, ge=1, le=1024)
    """Processes (or threads) that clean parts at the same time."""

    machines: Annotated[Machines, RUNTIME, EXPERT] = Machines()
    """Where parts are cleaned: this machine, or a cluster."""

    @model_validator(mode="after")
    def _names_exist(self) -> "CleanConfig":
        for what, names, known in (
            ("edit", self.edits or (), EDITS),
            ("rule", self.rules or (), RULES),
            ("edit or rule", (name.replace(":", " ") for name in self.add), (*EDITS, *RULES)),
            ("edit or rule", self.without, (*EDITS, *RULES)),
            ("rule or edit with a limit", self.limits, (*RULES, *EDIT_LIMITS)),
            ("language", self.languages, LANGUAGES),
        ):
            for name in names:
                _check_name(what, name, known)
        asked = (*self.add, *(("spelling",) if self.spelling else ()))
        for what, listed, known in (("edits", self.edits, EDITS), ("rules", self.rules, RULES)):
            idle = [name for name in asked if name in known and listed is not None and name not in listed]
            if idle:
                raise ValueError(f"`{idle[0]}` would not run: `{what}` lists all {what} that do; name it there too")
        if "spelling" in (*(self.edits or ()), *self.add) and not self.spelling:
            raise ValueError('`spelling` needs a list: [[clean.spelling]] path = "..."')
        own = [name for name in (*(self.edits or ()), *(self.rules or ())) if ":" in name]
        if own and self.extensions is None:
            raise ValueError(
                f'`{own[0]}` names a function of yours; set where its module is: extensions = {{ path = "{{recipe}}" }}'
            )
        for what, named in (("word lists", self.word_lists), ("classifiers", self.classifiers)):
            if len({one.name for one in named}) < len(named):
                raise ValueError(f"two {what} have the same name; each needs its own")
        return self

    def kind_of(self, source: str, format: str) -> KindName | None:
        """Return the kind of a document's text where its source or its format decides it."""
        return self.kinds.get(source) or _KINDS_OF_FORMATS.get(format)

    def preset_of(self, source: str, format: str, kind: str) -> str:
        """Return the preset for a document of a source, format (text, markdown, wikitext, html, code) and kind; each
        kind has its own."""
        chosen = self.presets.get(source) or ("code" if format == CODE else self.preset)
        return kind if chosen == "auto" else chosen


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if ":" not in name and name not in known:
        close = difflib.get_close_matches(name, sorted(known), n=1)
        meant = f"; did you mean `{close[0]}`? There are" if close else "; choose from"
        raise ValueError(f"there is no {what} `{name}`{meant} {', '.join(sorted(known))}")
