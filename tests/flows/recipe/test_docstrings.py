"""Docstrings as running text: names in order, nothing imported, nothing lost to a file that cannot be parsed."""

from flows.recipe.quickstart import help_topics, module_files, module_text

MODULE = b'''"""About the module."""
class Shelf:
    """Holds books."""
    def add(self):
        """Add one."""
    def silent(self):
        pass
'''


def test_docstrings_are_under_their_dotted_names_in_order():
    text = module_text("library", MODULE)
    assert (
        text == "library\n\nAbout the module.\n\n\nlibrary.Shelf\n\nHolds books.\n\n\nlibrary.Shelf.add\n\nAdd one.\n"
    )


def test_a_source_without_docstrings_or_that_cannot_be_parsed_gives_no_text():
    assert module_text("quiet", b"x = 1\n") is None
    assert module_text("python2", b"print 'x'\n") is None
    assert module_text("torn", b"x = '\0'\n") is None


def test_other_encodings_are_read_as_their_cookie_says():
    assert module_text("old", '# -*- coding: latin-1 -*-\n"""Größe."""\n'.encode("latin-1")) == "old\n\nGröße.\n"


def test_modules_are_listed_by_name_without_tests(tmp_path):
    for name in ("b/__init__.py", "b/deep.py", "a.py", "tests/x.py", "b/test_y.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [name for name, _ in module_files(tmp_path)] == ["a", "b", "b.deep"]
    assert [name for name, _ in module_files(tmp_path, recursive=False)] == ["a"]


def test_help_pages_are_listed_once():
    pages = help_topics()
    assert len(set(pages.values())) == len(pages) > 50
