"""Initial rows of new tokens, also where the base's ids identify no text."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from model.errors import InputError
from model.train.initial_weights import NOISE, initial_rows, read_added_pieces

TABLE = torch.tensor([[0.0, 8.0], [2.0, 8.0], [4.0, 0.0], [6.0, 0.0]])


def rows(base_ids: list[tuple[int, ...]], start: str, seed: int = 1, table: Tensor = TABLE) -> Tensor:
    return initial_rows(table, base_ids, start, seed, init_std=0.02)[0]


def test_a_row_is_the_mean_of_the_rows_that_wrote_its_bytes() -> None:
    assert rows([(1, 2), (3,), (0, 0, 3, 3)], "mean").tolist() == [[3.0, 4.0], [6.0, 0.0], [3.0, 4.0]]


def test_noise_is_a_tenth_of_the_spread_of_each_column() -> None:
    table = torch.randn(1000, 2, generator=torch.Generator().manual_seed(3)) * torch.tensor([5.0, 0.5])
    base_ids = [(number, number + 1) for number in range(998)]
    noise = rows(base_ids, "mean_noise", table=table) - rows(base_ids, "mean", table=table)
    assert noise.std(dim=0).tolist() == pytest.approx([NOISE * 5.0, NOISE * 0.5], rel=0.1)
    assert noise.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=0.05)


def test_random_rows_start_as_in_a_fresh_network() -> None:
    drawn = rows([(1, 2)] * 5000, "random")
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.05)


def test_where_ids_say_nothing_the_mean_of_all_is_in_each_with_its_own_noise() -> None:
    """T5 writes every Chinese character as its unknown token, here 3: all rows would start as that one."""
    made, without_meaning = initial_rows(TABLE, [(3,), (1, 2), (3,), (), (3,)], "mean", 1, 0.02)
    assert without_meaning == 4
    assert made[1].tolist() == [3.0, 4.0]
    stand_in = made[[0, 2, 3, 4]]
    assert ((stand_in - TABLE.mean(dim=0)).abs() < 5 * NOISE * TABLE.std(dim=0)).all()
    assert len({tuple(row) for row in stand_in.tolist()}) == 4


def test_rows_are_a_function_of_the_seed() -> None:
    base_ids = [(1, 2), (3,)]
    torch.manual_seed(5)
    first = rows(base_ids, "mean_noise", seed=7)
    torch.manual_seed(6)
    assert torch.equal(rows(base_ids, "mean_noise", seed=7), first)
    assert not torch.equal(rows(base_ids, "mean_noise", seed=8), first)


def written(path: Path, ids: list[int], base_ids: list[list[int]]) -> Path:
    table = pa.table({"id": pa.array(ids, pa.int32()), "base_ids": pa.array(base_ids, pa.list_(pa.int32()))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def test_a_table_names_the_rows_beyond_the_base(tmp_path: Path) -> None:
    path = written(tmp_path / "added_pieces.arrow", [4, 5], [[1, 2], []])
    assert read_added_pieces(path, 4, 6) == [(1, 2), ()]


@pytest.mark.parametrize(
    ("ids", "base_ids", "words"),
    [
        (
            [5, 6],
            [[1], [2]],
            r"describes the tokens 5 to 6 \(2 rows\).* has 4 to 5.*set vocab\.base.*embedding_rows to 4",
        ),
        ([], [], "describes the tokens none"),
        ([4, 5], [[1], [4]], "names 4 as an id of the base, which has 4 rows"),
    ],
)
def test_a_table_of_another_base_is_refused(tmp_path: Path, ids: list, base_ids: list, words: str) -> None:
    with pytest.raises(InputError, match=rf"(?s){words}"):
        read_added_pieces(written(tmp_path / "a.arrow", ids, base_ids), 4, 6)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*added_pieces"):
        read_added_pieces(tmp_path / "added_pieces.arrow", 4, 6)
