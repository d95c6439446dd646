"""A sequence as a chain of hashes, one for each full block of tokens: by these the prefix cache knows blocks again.

    tenant -> salt -> tokens 0..15 -> tokens 16..31 -> ...        hash = blake2b(parent | tag | length | value)

A hash names everything before it too. Requests of different tenants, or with different salts, have no hash in common,
so they share nothing. Tags and lengths keep values of different kinds apart.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

DIGEST_BYTES = 32
TENANT, SALT, TOKENS = b"n", b"s", b"t"  # what a hash adds to its parent: tags of one byte


class Hash(Protocol):
    """A digest of the parent's digest and one value."""

    def __call__(self, parent: bytes, tag: bytes, value: bytes) -> bytes: ...


def hash_link(parent: bytes, tag: bytes, value: bytes) -> bytes:
    """Different triples are different texts: parent and tag have fixed lengths, and the value brings its own."""
    text = parent + tag + len(value).to_bytes(8, "little") + value
    return blake2b(text, digest_size=DIGEST_BYTES).digest()


class PrefixChain:
    """One sequence's hashes, computed once for each full block as it fills."""

    __slots__ = ("_block_size", "_hash", "contents", "digests", "looked_up_at", "num_kept", "root")

    def __init__(self, tenant: str, salt: bytes, block_size: int, hash_: Hash = hash_link) -> None:
        self.root = hash_(hash_(bytes(DIGEST_BYTES), TENANT, tenant.encode()), SALT, salt)
        self.digests: list[bytes] = []
        self.contents: list[bytes] = []
        self.num_kept = 0  # blocks of the present tables that the cache was told of
        self.looked_up_at = -1  # the cache's num_changes at the last look-up
        self._block_size = block_size
        self._hash = hash_

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Hashes on until the chain has so many blocks of these tokens; what is hashed already is not looked at."""
        parent = self.digests[-1] if self.digests else self.root
        first = len(self.digests)
        tokens = array("I", token_ids[first * self._block_size : num_blocks * self._block_size])
        text, width = tokens.tobytes(), self._block_size * tokens.itemsize
        for start in range(0, len(text), width):
            content = text[start : start + width]
            parent = self._hash(parent, TOKENS, content)
            self.digests.append(parent)
            self.contents.append(content)
