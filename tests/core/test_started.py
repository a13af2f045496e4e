"""Payloads that are begun and finished later: a codec that could not write says so with a length below 0."""

from __future__ import annotations

import pytest
import torch

from thinwire import Key, Payload
from thinwire.core.started import Started, Written, finish, whole


def test_bytes_before_those_of_a_codec_count() -> None:
    assert whole(Written(None, 0)) is None
    assert whole(Written(5, 8)) == 13
    assert whole(Written(torch.tensor([5]), 8)) == torch.tensor([13])


def test_a_codec_that_could_not_write_is_noticed_behind_other_bytes() -> None:
    used = whole(Written(torch.tensor([-4]), 8))
    with pytest.raises(ValueError, match="a symbol that does not fit its width"):
        finish([Started(Payload.new(16), used, 7, Key(), checksum=True)])
