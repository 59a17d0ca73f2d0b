"""Tiles of matrix products in vector registers: instructions that numba compiles.

Each element of a tile is one chain of fused multiply-adds, whatever the width of vectors. Matrices are given by the
addresses of their f32 and by strides, in numbers; nothing is checked here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from model.kernels import kernel

_SETTINGS: Any = config
"""numba's settings, whose names are set at import, so that no type checker knows them."""

HAS_512_BITS = "+avx512f" in (_SETTINGS.CPU_FEATURES or get_host_cpu_features())

LANES = 16 if HAS_512_BITS else 8
"""Numbers of a vector."""

ROWS, VECTORS = (8, 2) if HAS_512_BITS else (4, 3)
"""Of a tile: so many sums at once that none waits for the one before it, and no more than there are registers."""

COLUMNS = LANES * VECTORS

NARROW = COLUMNS - LANES
"""Columns of a narrower tile, so that those of a matrix that COLUMNS do not divide cost little more than themselves."""

CORNER = 8
"""Rows and columns that are transposed at once."""

APART = 4
"""Columns left free after a packed tile: tiles of 4 KiB one behind the other would share a few lines of the cache."""

BYTES = 4

LINE = 64
"""Bytes of a line of the cache."""


@kernel
def fill_panel(b: int, b_inner: int, b_column: int, count: int, width: int, panel: np.ndarray) -> None:
    """Copy some columns of a matrix, row behind row; what follows their width in a row of the panel has no meaning."""
    numbers = carray(_pointer(b), 1 << 40)  # pyright: ignore[reportCallIssue]
    if b_column == 1:
        whole = width // LANES * LANES
        for k in range(count):
            for column in range(0, whole, LANES):
                source, target = b + BYTES * (k * b_inner + column), panel.ctypes.data + BYTES * (k * COLUMNS + column)
                _copy(source, target, LANES)  # pyright: ignore[reportCallIssue]
            for column in range(whole, width):
                panel[k * COLUMNS + column] = numbers[k * b_inner + column]
        return
    corner_rows = count // CORNER * CORNER if b_inner == 1 else 0
    corner_columns = width // CORNER * CORNER
    for k in range(0, corner_rows, CORNER):
        for column in range(0, corner_columns, CORNER):
            source, target = b + BYTES * (k + column * b_column), panel.ctypes.data + BYTES * (k * COLUMNS + column)
            _transpose(source, b_column, target)
    for k in range(count):
        for column in range(corner_columns if k < corner_rows else 0, width):
            panel[k * COLUMNS + column] = numbers[k * b_inner + column * b_column]


@kernel
def pack_rows(a: int, a_row: int, a_inner: int, count: int, rows: int, packed: np.ndarray) -> None:
    """Copy some columns of a matrix tile behind tile: ROWS numbers of a column, those of the next, and so on."""
    numbers = carray(_pointer(a), 1 << 40)  # pyright: ignore[reportCallIssue]
    whole = rows // ROWS * ROWS if a_row == 1 else 0
    for k in range(count):
        for row in range(0, whole, ROWS):
            target = packed.ctypes.data + BYTES * (row * (count + APART) + k * ROWS)
            _copy(a + BYTES * (row + k * a_inner), target, ROWS)  # pyright: ignore[reportCallIssue]
        for row in range(whole, rows):
            packed[row // ROWS * ROWS * (count + APART) + k * ROWS + row % ROWS] = numbers[row * a_row + k * a_inner]


@intrinsic
def tile(
    typing_context: Any,
    a: Any,
    a_row: Any,
    a_inner: Any,
    panel: Any,
    count: Any,
    out: Any,
    out_row: Any,
    height: Any,
    width: Any,
    adds: Any,
) -> Any:
    """Compile to the product of up to ROWS rows and a panel, written or added to a part of the result. There is at
    least one row, one column and one product in a sum."""
    del typing_context, a, a_row, a_inner, panel, count, out, out_row, height, width, adds

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return _Tile(builder, arguments).compiled(context)

    return types.void(*[types.int64] * 9, types.boolean), generate


class _Tile:
    """Appends the instructions of a tile to those of a kernel."""

    def __init__(self, builder: Any, arguments: Sequence[Any]) -> None:
        self._builder = builder
        self._a, self._a_row, self._a_inner, self._panel, self._count, *of_result = arguments
        self._out, self._out_row, self._height, self._width, self._adds = of_result
        self._vector = ir.VectorType(ir.FloatType(), LANES)

    def compiled(self, context: Any) -> Any:
        """Append them, and return what a function without a result returns."""
        self._prefetch()
        with self._builder.if_else(self._builder.icmp_signed("<=", self._width, _number(NARROW))) as (narrow, full):
            with narrow:
                self._append(VECTORS - 1)
            with full:
                self._append(VECTORS)
        return context.get_dummy_value()

    def _append(self, vectors: int) -> None:
        """Append a tile of so many vectors in a row."""
        builder = self._builder
        sums = self._chains(vectors)
        is_whole = builder.icmp_signed("==", self._width, _number(vectors * LANES))
        for row in range(ROWS):
            with builder.if_then(builder.icmp_signed("<", _number(row), self._height)):
                line = _moved(builder, self._out, builder.mul(self._out_row, _number(row)))
                with builder.if_else(is_whole) as (whole, part):
                    with whole:
                        self._write(line, sums[row])
                    with part:
                        self._write_part(line, sums[row])

    def _prefetch(self) -> None:
        """Have the result's lines brought to the cache while the chains are computed."""
        builder, whole = self._builder, ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        of_type = ir.FunctionType(ir.VoidType(), [pointer, whole, whole, whole])
        function = cgutils.get_or_insert_function(builder.module, of_type, "llvm.prefetch.p0")
        is_written, in_all_caches, of_data = (ir.Constant(whole, value) for value in (1, 3, 1))
        for row in range(ROWS):
            line = _moved(builder, self._out, builder.mul(self._out_row, _number(row)))
            for number in range(0, COLUMNS, LINE // BYTES):
                place = builder.inttoptr(_moved(builder, line, _number(number)), pointer)
                builder.call(function, [place, is_written, in_all_caches, of_data])

    def _chains(self, vectors: int) -> list[list[Any]]:
        """Append the loop over what is summed, and return the sums of each row."""
        builder, places = self._builder, [(row, part) for row in range(ROWS) for part in range(vectors)]
        # Rows after the last one are the last one again, so that nothing outside of the matrix is read.
        last = builder.sub(self._height, _number(1))
        lines = []
        for row in range(ROWS):
            is_there = builder.icmp_signed("<", _number(row), last)
            lines.append(builder.mul(builder.select(is_there, _number(row), last), self._a_row))
        before = builder.block
        loop, after = builder.append_basic_block("chains"), builder.append_basic_block("chained")
        builder.branch(loop)
        builder.position_at_end(loop)
        left, a, panel = (builder.phi(ir.IntType(64)) for _ in range(3))
        sums = {place: builder.phi(self._vector) for place in places}
        columns = [self._load(_moved(builder, panel, _number(part * LANES))) for part in range(vectors)]
        added = {}
        for row in range(ROWS):
            address = builder.inttoptr(_moved(builder, a, lines[row]), ir.FloatType().as_pointer())
            factor = self._all(builder.load(address, align=BYTES))
            for part in range(vectors):
                added[row, part] = self._fused(factor, columns[part], sums[row, part])
        next_left = builder.sub(left, _number(1))
        turns = [
            (left, self._count, next_left),
            (a, self._a, _moved(builder, a, self._a_inner)),
            (panel, self._panel, _moved(builder, panel, _number(COLUMNS))),
            *((sums[place], ir.Constant(self._vector, [0.0] * LANES), added[place]) for place in places),
        ]
        for value, first, following in turns:
            value.add_incoming(first, before)
            value.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed(">", next_left, _number(0)), loop, after)
        builder.position_at_end(after)
        return [[added[row, part] for part in range(vectors)] for row in range(ROWS)]

    def _write(self, line: Any, sums: list[Any]) -> None:
        builder = self._builder
        for part in range(len(sums)):
            place = _moved(builder, line, _number(part * LANES))
            with builder.if_else(self._adds) as (more, first):
                with more:
                    builder.store(builder.fadd(self._load(place), sums[part]), self._at(place), align=BYTES)
                with first:
                    builder.store(sums[part], self._at(place), align=BYTES)

    def _write_part(self, line: Any, sums: list[Any]) -> None:
        """Write the columns that exist."""
        builder, module = self._builder, self._builder.module
        mask_type, alignment = ir.VectorType(ir.IntType(1), LANES), ir.Constant(ir.IntType(32), BYTES)
        pointer = self._vector.as_pointer()
        store_type = ir.FunctionType(ir.VoidType(), [self._vector, pointer, ir.IntType(32), mask_type])
        load_type = ir.FunctionType(self._vector, [pointer, ir.IntType(32), mask_type, self._vector])
        store = cgutils.get_or_insert_function(module, store_type, f"llvm.masked.store.v{LANES}f32.p0")
        load = cgutils.get_or_insert_function(module, load_type, f"llvm.masked.load.v{LANES}f32.p0")
        zeros = ir.Constant(self._vector, [0.0] * LANES)
        for part in range(len(sums)):
            place = self._at(_moved(builder, line, _number(part * LANES)))
            numbers = ir.Constant(ir.VectorType(ir.IntType(64), LANES), [part * LANES + lane for lane in range(LANES)])
            mask = builder.icmp_signed("<", numbers, self._all(self._width))
            with builder.if_else(self._adds) as (more, first):
                with more:
                    before = builder.call(load, [place, alignment, mask, zeros])
                    builder.call(store, [builder.fadd(before, sums[part]), place, alignment, mask])
                with first:
                    builder.call(store, [sums[part], place, alignment, mask])

    def _fused(self, x: Any, y: Any, z: Any) -> Any:
        of_type = ir.FunctionType(self._vector, [self._vector] * 3)
        function = cgutils.get_or_insert_function(self._builder.module, of_type, f"llvm.fma.v{LANES}f32")
        return self._builder.call(function, [x, y, z])

    def _all(self, value: Any) -> Any:
        """Return a vector of one value."""
        nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        first = self._builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self._builder.shuffle_vector(first, nothing, zeros)

    def _load(self, address: Any) -> Any:
        return self._builder.load(self._at(address), align=BYTES)

    def _at(self, address: Any) -> Any:
        return self._builder.inttoptr(address, self._vector.as_pointer())


@intrinsic(prefer_literal=True)
def _copy(typing_context: Any, source: Any, target: Any, numbers: Any) -> Any:
    """Compile to instructions that copy a constant count of numbers by their addresses."""
    del typing_context, source, target

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        pointer = ir.VectorType(ir.FloatType(), numbers.literal_value).as_pointer()
        found = builder.load(builder.inttoptr(arguments[0], pointer), align=BYTES)
        builder.store(found, builder.inttoptr(arguments[1], pointer), align=BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, numbers), generate


@intrinsic
def _transpose(typing_context: Any, source: Any, stride: Any, target: Any) -> Any:
    """Compile to instructions that write CORNER columns, each contiguous and a stride after the last, as rows of a
    panel."""
    del typing_context, source, stride, target

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        source, stride, target = arguments
        pointer = ir.VectorType(ir.FloatType(), CORNER).as_pointer()
        order, lines = ir.VectorType(ir.IntType(32), CORNER), range(CORNER)
        found = []
        for line in lines:
            address = _moved(builder, source, builder.mul(stride, _number(line)))
            found.append(builder.load(builder.inttoptr(address, pointer), align=BYTES))
        for step in (1, 2, 4):
            # Of two squares on both sides of the diagonal one takes the place of the other.
            upper = [CORNER + place - step if place & step else place for place in lines]
            lower = [CORNER + place if place & step else place + step for place in lines]
            for line in (line for line in lines if not line & step):
                pair = found[line], found[line + step]
                found[line] = builder.shuffle_vector(*pair, ir.Constant(order, upper))
                found[line + step] = builder.shuffle_vector(*pair, ir.Constant(order, lower))
        for line in lines:
            address = _moved(builder, target, _number(line * COLUMNS))
            builder.store(found[line], builder.inttoptr(address, pointer), align=BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Compile to a pointer to f32."""
    del typing_context, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


def _moved(builder: Any, address: Any, numbers: Any) -> Any:
    return builder.add(address, builder.mul(numbers, _number(BYTES)))


def _number(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)
