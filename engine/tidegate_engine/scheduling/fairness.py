"""Whose turn it is among tenants: virtual token counters.

Every tenant has a counter of what was computed for it; of those that wait, the one with the least goes next. So a
tenant that sends a thousand requests and one that sends ten are served alike while both wait, and whatever one leaves
the other may take. A tenant that comes back after a pause starts where the least served of the active ones stands: a
pause earns no credit. The queue asks whose turn it is, the scheduler charges, the door asks for shares.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

PROMPT_WEIGHT = 1
OUTPUT_WEIGHT = 2  # a sampled token costs a row of every step; prompt tokens share theirs
MAX_IDLE_TENANTS = 1024  # remembered with nothing queued or running; what the oldest owed is forgotten


@dataclass(slots=True, eq=False)
class TenantAccount:
    """`virtual_tokens` never falls; `live_tokens` are those of its queued and running requests, answers in full."""

    tenant: str
    virtual_tokens: int = 0
    num_live: int = 0
    live_tokens: int = 0

    def charge_prompt(self, num_tokens: int) -> None:
        self.virtual_tokens += PROMPT_WEIGHT * num_tokens


class TenantShare(NamedTuple):
    """A tenant with requests queued or running. `share`: its part of all tokens that these ask for, 0 to 1."""

    tenant: str
    share: float
    num_live: int
    virtual_tokens: int


class TenantLedger:
    """Accounts by tenant. Belongs to the queue and is called under its lock; counters are charged by one thread."""

    def __init__(self) -> None:
        self._active: dict[str, TenantAccount] = {}
        self._idle: OrderedDict[str, TenantAccount] = OrderedDict()
        self._live_tokens = 0
        self._last_virtual_tokens = 0  # of the tenant that became idle last

    @property
    def num_remembered(self) -> int:
        return len(self._active) + len(self._idle)

    def enter(self, tenant: str, num_tokens: int) -> TenantAccount:
        """A request of so many tokens, prompt and answer, begins to count."""
        account = self._active.get(tenant) or self._activate(tenant)
        account.num_live += 1
        account.live_tokens += num_tokens
        self._live_tokens += num_tokens
        return account

    def leave(self, account: TenantAccount, num_tokens: int) -> None:
        account.num_live -= 1
        account.live_tokens -= num_tokens
        self._live_tokens -= num_tokens
        if not account.num_live:
            del self._active[account.tenant]
            self._idle[account.tenant] = account
            self._last_virtual_tokens = account.virtual_tokens
            if len(self._idle) > MAX_IDLE_TENANTS:
                self._idle.popitem(last=False)

    def is_over_share(self, tenant: str) -> bool:
        """Whether it asks for more than an equal part; a tenant alone never does."""
        account = self._active.get(tenant)
        return account is not None and account.live_tokens * len(self._active) > self._live_tokens

    def is_under_share(self, tenant: str) -> bool:
        """Whether it asks for less than an equal part of what others ask for too."""
        account = self._active.get(tenant)
        if account is None:
            return bool(self._active)
        return account.live_tokens * len(self._active) < self._live_tokens

    def shares(self) -> tuple[TenantShare, ...]:
        whole = max(1, self._live_tokens)
        return tuple(
            TenantShare(account.tenant, account.live_tokens / whole, account.num_live, account.virtual_tokens)
            for account in self._active.values()
        )

    def _activate(self, tenant: str) -> TenantAccount:
        account = self._idle.pop(tenant, None) or TenantAccount(tenant)
        least = min((other.virtual_tokens for other in self._active.values()), default=self._last_virtual_tokens)
        account.virtual_tokens = max(account.virtual_tokens, least)
        self._active[tenant] = account
        return account
