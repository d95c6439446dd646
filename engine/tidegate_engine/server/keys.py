"""API keys as an engine knows them: digests only, each with the tenant it stands for.

A key file has one key a line, `sha256:<64 hex digits> [tenant]`; blank lines and lines that begin with # are skipped.
Keys are long random strings (`tidegate api-key` makes one), so an unsalted digest gives nothing away.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_engine.errors import EngineError
from tidegate_engine.request import ServiceClass, Terms

PREFIX = "sha256:"
TENANT_DIGITS = 12  # of the digest, where a key has no name
MAX_TENANT_LENGTH = 64
_DIGEST = re.compile("[0-9a-fA-F]{64}")
_TENANT = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_TENANT_LENGTH - 1}}}")


class BadKeys(EngineError):
    """A key file that cannot be used, with the line at fault."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. "" is everybody where no keys are configured."""

    tenant: str = ""
    cache_salt: bytes = b""

    def terms(self, *, service_class: ServiceClass = ServiceClass.GUARANTEED, priority: int = 0) -> Terms:
        return Terms(self.tenant, priority, service_class, self.cache_salt)


ANYBODY = Caller()


@dataclass(frozen=True)
class ApiKeys:
    """Callers by their key's digest. A lookup by digest tells by its timing nothing about any key."""

    callers: Mapping[bytes, Caller] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "ApiKeys":
        """Raises BadKeys. A file without keys is refused too: it locks everybody out, and is easily an accident."""
        callers: dict[bytes, Caller] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            digest, caller = _entry(number, words)
            if callers.setdefault(digest, caller) != caller:
                raise BadKeys(f"line {number}: this key stands for another tenant in a line above")
        if not callers:
            raise BadKeys("it holds no key, so nobody could be served; `tidegate api-key` makes one")
        return cls(callers)

    def caller_of(self, key: str) -> Caller | None:
        """None for a key that is not known."""
        return self.callers.get(digest_of(key))


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def key_line(key: str, tenant: str = "") -> str:
    """The line of a key file that lets `key` in. Raises BadKeys if the tenant's name cannot stand there."""
    if tenant and not _TENANT.fullmatch(tenant):
        raise BadKeys(_bad_tenant(tenant))
    return f"{PREFIX}{digest_of(key).hex()} {tenant}".rstrip()


def _entry(number: int, words: list[str]) -> tuple[bytes, Caller]:
    digits = words[0].removeprefix(PREFIX)
    if digits == words[0] or not _DIGEST.fullmatch(digits):
        # The line itself is not shown: it may be a key.
        raise BadKeys(
            f"line {number} is not '{PREFIX}<64 hexadecimal digits> [tenant]'; keys are kept hashed: "
            "printf %s $KEY | sha256sum"
        )
    if len(words) > 2:
        raise BadKeys(f"line {number} has {len(words)} words; a tenant's name is one word")
    tenant = words[1] if len(words) > 1 else digits.lower()[:TENANT_DIGITS]
    if not _TENANT.fullmatch(tenant):
        raise BadKeys(f"line {number}: {_bad_tenant(tenant)}")
    digest = bytes.fromhex(digits)
    return digest, Caller(tenant, digest)


def _bad_tenant(tenant: str) -> str:
    return f"'{tenant}' is no tenant's name: letters, digits, and ._@- inside, at most {MAX_TENANT_LENGTH} in all"
