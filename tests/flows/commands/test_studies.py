"""What is wrong in the files and options of a study is said before a Prefect server starts, and names its file."""

from pathlib import Path

import pytest

from tests.command import invoke

FEW = "".join(f"[[sizes]]\nwidth = {width}\nlayers = 2\nheads = 2\n" for width in (16, 32))
ODD = FEW + "".join(f"[[sizes]]\nwidth = {width}\nlayers = 2\nheads = 3\n" for width in (64, 128))
TYPO = '[changes.thin]\n"train.model.widht" = 48\n'
LATER = '[changes.low]\n"train.batch_rows" = 4\n[then.settings]\n"train.model.widht" = 48\n'
PROXY = '[mix]\nproxies = 8\n[mix.settings]\n"train.model.widht" = 16\n'
MEANT = "train.model.widht=48: train.model.widht: unknown key; did you mean `width`?"


@pytest.mark.parametrize(
    ("words", "table", "study", "said"),
    [
        (["scale"], "", FEW, "/study.toml: a ladder needs 4 sizes at least; it has 2"),
        (["scale"], "", ODD, "/study.toml, 2 layers of 64: "),
        (["ablate"], "", TYPO, f"/study.toml, [changes.thin]: {MEANT}"),
        (["ablate"], "", LATER, f"/study.toml, [base] with [then.settings]: {MEANT}"),
        (["mix"], "", "", "/recipe.toml: no table [mix], "),
        (["mix", "--proxies", "7"], "[mix]\nkept_back = 0.6\n", "", "7 proxies, of which 4 judge the fit"),
        (["mix", "--proxies", "6"], "[mix]\n", "", "should be greater than or equal to 7"),
        (["mix"], PROXY, "", "/recipe.toml, [mix.settings]: train.model.widht=16: train.model.widht: unknown key"),
        (["search"], "", "", "/recipe.toml: no table [search], "),
    ],
)
def test_a_study_that_cannot_be_starts_no_server(
    words: list[str],
    table: str,
    study: str,
    said: str,
    foundry: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a server started")

    monkeypatch.setattr("flows.commands.studies.prefect_ready", started)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text((foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)) + table)
    (tmp_path / "study.toml").write_text(study)
    files = [recipe, tmp_path / "study.toml"] if study else [recipe]
    done = invoke("study", words[0], *files, *words[1:], "--root", tmp_path / "root", code=2)
    assert said in " ".join(done.output.split())
