"""Keys go to the same partitions as with Kafka's Java client."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as clients_murmur2

from shieldtx.brokers.partitioning import Spread, murmur2, partition_of

# From Kafka's own test of its hash, UtilsTest.testMurmur2.
KAFKAS_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "hashed"), KAFKAS_VECTORS.items())
def test_hash_is_that_of_the_java_client(data: bytes, hashed: int) -> None:
    assert murmur2(data) == hashed % 2**32


@given(st.binary(max_size=80))
def test_hash_is_that_of_the_python_client_for_any_bytes(data: bytes) -> None:
    assert murmur2(data) == clients_murmur2(data)


@given(st.binary(), st.integers(1, 1000))
def test_key_always_has_the_same_partition_within_bounds(key: bytes, partitions: int) -> None:
    partition = partition_of(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of(bytes(bytearray(key)), partitions)


def test_keyless_records_fill_stretches_on_all_partitions() -> None:
    spread = Spread(stretch=1_000)
    chosen = [spread.next_partition(100, 4) for _ in range(80)]
    assert chosen[:20] == [0] * 10 + [1] * 10
    assert Counter(chosen) == {0: 20, 1: 20, 2: 20, 3: 20}


def test_keyless_records_above_a_stretch_alternate() -> None:
    spread = Spread(stretch=1_000)
    assert sorted(spread.next_partition(5_000, 3) for _ in range(3)) == [0, 1, 2]


def test_keyless_records_use_added_partitions() -> None:
    spread = Spread(stretch=1)
    assert {spread.next_partition(1, 2) for _ in range(10)} == {0, 1}
    assert {spread.next_partition(1, 3) for _ in range(10)} == {0, 1, 2}
