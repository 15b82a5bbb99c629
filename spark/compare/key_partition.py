"""The partition of a key as an expression: `shieldtx/brokers/partitioning.py` for whole columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_32_BITS = 0xFFFFFFFF
_31_BITS = 0x7FFFFFFF
_WORD = 4


def partition_of(key: Column, partitions: Column) -> Column:
    """Return the partition (0 to `partitions` - 1) of all records with this key; NULL without one.

    All numbers are below 2^32 and the multiplier below 2^31, so no product overflows.
    """
    data = F.encode(key, "UTF-8")
    length = F.octet_length(data)
    left = length % _WORD
    words = ((length - left) / _WORD).cast("int")
    numbers = F.when(words > 0, F.sequence(F.lit(0), words - 1)).otherwise(
        F.array().cast("array<int>")
    )
    tail = _number(data, words, left)
    hash_ = F.aggregate(
        numbers,
        F.lit(_SEED).bitwiseXOR(length.cast("bigint")),
        lambda so_far, word: _with_word(so_far, _number(data, word, F.lit(_WORD))),
        lambda mixed: _finished(
            F.when(left > 0, _product(mixed.bitwiseXOR(tail))).otherwise(mixed)
        ),
    )
    return (hash_.bitwiseAND(F.lit(_31_BITS)) % partitions).cast("int")


def _with_word(so_far: Column, word: Column) -> Column:
    return _product(so_far).bitwiseXOR(_product(_shifted(_product(word), 24)))


def _finished(mixed: Column) -> Column:
    return _shifted(_product(_shifted(mixed, 13)), 15)


def _number(data: Column, word: Column, size: Column) -> Column:
    """Return the number in at most four bytes, in little-endian order."""
    digits = F.hex(F.substring(data, word * _WORD + 1, size))
    pairs = [F.substring(digits, 2 * place + 1, 2) for place in reversed(range(_WORD))]
    return F.conv(F.concat(F.lit("0"), *pairs), 16, 10).cast("bigint")


def _product(number: Column) -> Column:
    return (number * F.lit(_MULTIPLIER).cast("bigint")).bitwiseAND(F.lit(_32_BITS))


def _shifted(number: Column, bits: int) -> Column:
    return number.bitwiseXOR(F.shiftrightunsigned(number, bits))
