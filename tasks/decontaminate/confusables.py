"""Letters of other scripts that look like Latin ones, in small or capital form, for matching only.

Somebody who hides a copied passage replaces letters by their twins. Folding both sides to the Latin twin makes the
copies equal again; no two letters of one script share a twin here, so distinct words of a script stay distinct. Keys
are what a character is after NFKD and case folding. Own table, in the spirit of Unicode UTS #39.
"""

_CYRILLIC = dict(zip("авекмнорстухіјѕԁԛԝѵӏ", "abekmhopctyxijsdqwvl", strict=True))
_GREEK = dict(zip("αβεζηικμνορτυχ", "abezhikmvoptux", strict=True))
_ARMENIAN = dict(zip("օսոհցք", "ounhgp", strict=True))
_LATIN = {"ı": "i", "ɡ": "g", "ɑ": "a", "ł": "l", "ø": "o", "đ": "d"}

LOOK_ALIKES: dict[str, str] = {**_CYRILLIC, **_GREEK, **_ARMENIAN, **_LATIN}
