"""Range variant of asymmetric numeral systems (rANS): symbols as bits, close to their entropy, with whole numbers only.

Symbols are dealt to lanes like cards; all lanes take one step at a time, so NumPy's vector operations do the work. Coding runs
backwards and decoding forwards, and both touch the 16-bit words in the same order. Equal symbols give equal bytes on every
machine.

::

    final states u32 x lanes | words u16, in the order in which decoding reads them

Source: J. Duda, arXiv 1311.2540; interleaving: F. Giesen, arXiv 1402.3392.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.errors import CodecError

PRECISION = 12
"""Frequencies of an alphabet add up to ``2**PRECISION``."""
LANE_SYMBOLS = 2048  # A lane costs 4 bytes: 1 % of its symbols at 1.2 bits each.
_AT_ONCE = 1 << 20  # Symbols.
_SCALE = 1 << PRECISION
_LOW = 1 << 16  # States stay in [2**16, 2**32).

Symbols = NDArray[np.uint8]
Frequencies = NDArray[np.uint32]


def frequencies(symbols: Symbols, alphabet: int) -> Frequencies:
    """How often each of the ``alphabet`` symbols occurs, scaled to add up to ``2**PRECISION``; none that occurs has 0."""
    parts = range(0, symbols.size, _AT_ONCE)  # Of bytes numpy makes whole numbers of 64 bits first.
    counted = (np.bincount(symbols[start : start + _AT_ONCE], minlength=alphabet) for start in parts)
    counts = sum(counted, start=np.zeros(alphabet, dtype=np.int64))
    scaled = counts * _SCALE // max(1, symbols.size)
    scaled[(counts > 0) & (scaled == 0)] = 1
    # The most frequent one has room to give, or takes the rest.
    scaled[np.argmax(scaled)] += _SCALE - int(scaled.sum())
    return scaled.astype(np.uint32)


def lanes(count: int) -> int:
    """Over how many lanes ``count`` symbols are dealt."""
    return -(-count // LANE_SYMBOLS)


def longest(count: int) -> int:
    """Bytes that ``count`` symbols can take at most: ``PRECISION`` bits each, and the lanes' states."""
    return 4 * lanes(count) + 2 * -(-count * PRECISION // 16) + 2 * lanes(count)


def compress(symbols: Symbols, table: Frequencies) -> bytes:
    """The bytes of symbols that all have a frequency in ``table``."""
    width = lanes(symbols.size)
    first = np.concatenate(([0], np.cumsum(table[:-1]))).astype(np.uint64)
    often = table.astype(np.uint64)
    states = np.full(width, _LOW, dtype=np.uint64)
    words: list[NDArray[np.uint16]] = []
    for start in range((symbols.size - 1) // width * width, -1, -width):
        row = symbols[start : start + width]
        state, frequency = states[: row.size], often[row]
        full = state >= frequency << np.uint64(32 - PRECISION)
        words.append(state[full].astype(np.uint16))  # Its lower 16 bits.
        state = np.where(full, state >> np.uint64(16), state)
        quotient, rest = np.divmod(state, frequency)
        states[: row.size] = (quotient << np.uint64(PRECISION)) + rest + first[row]
    return states.astype("<u4").tobytes() + np.concatenate(words[::-1]).astype("<u2").tobytes()


def decompress(data: memoryview, count: int, table: Frequencies) -> Symbols:
    """The ``count`` symbols of these bytes; at most ``count`` bytes are taken, whatever they say.

    Raises:
        CodecError: too short, too long, or no end in the state that coding begins with.
    """
    width = lanes(count)
    if int(table.sum(dtype=np.uint64)) != _SCALE:
        raise CodecError(f"frequencies add up to {int(table.sum(dtype=np.uint64))}, not to {_SCALE}")
    if len(data) < 4 * width or len(data) % 2:
        raise CodecError(f"{len(data):,} bytes hold no {width:,} lanes of symbols")
    states = np.frombuffer(data, "<u4", width).astype(np.uint64)
    words = np.frombuffer(data, "<u2", offset=4 * width)
    meaning = np.repeat(np.arange(table.size, dtype=np.uint8), table)
    often = table.astype(np.uint64)
    first = np.concatenate(([0], np.cumsum(table[:-1]))).astype(np.uint64)
    symbols, position = np.empty(count, dtype=np.uint8), 0
    for start in range(0, count, width):
        state = states[: min(width, count - start)]
        slot = state & np.uint64(_SCALE - 1)
        row = meaning[slot]
        symbols[start : start + state.size] = row
        state = often[row] * (state >> np.uint64(PRECISION)) + slot - first[row]
        empty = np.flatnonzero(state < _LOW)
        more = words[position : position + empty.size]
        if more.size < empty.size:
            raise CodecError("coded symbols end too early")
        state[empty] = (state[empty] << np.uint64(16)) | more.astype(np.uint64)
        states[: state.size] = state
        position += empty.size
    if position != words.size or not bool((states == _LOW).all()):
        raise CodecError("coded symbols do not end where they should: these bytes were not made by this codec")
    return symbols
