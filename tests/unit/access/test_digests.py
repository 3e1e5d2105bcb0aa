from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tidings.access.digests import Beside

SIZES = st.lists(st.sampled_from([0, 1, 1000, 100_000, 262_143, 262_144, 600_000]), max_size=12)


@given(SIZES, SIZES)
def test_however_the_bytes_come_the_digest_is_theirs(first: list[int], second: list[int]) -> None:
    expected, beside = hashlib.md5(), Beside(hashlib.md5())
    for sizes in (first, second):
        for number, size in enumerate(sizes):
            data = bytes([number]) * size
            expected.update(data)
            beside.update(data)
        assert beside.digest() == expected.digest()
        assert beside.digest() == expected.digest()
