"""Order among tenants and priorities: equal service while both wait, no credit for pauses, nothing grows for ever."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import ScriptedRunner, engine_of, request_of, run_until_idle
from tidegate_engine.engine import Engine
from tidegate_engine.request import Request, ServiceClass, Terms
from tidegate_engine.scheduling.fairness import MAX_IDLE_TENANTS, TenantLedger
from tidegate_engine.scheduling.queue import RequestQueue


def of_tenant(tenant: str, name: str, num_prompt: int = 50, max_tokens: int = 20, **terms: object) -> Request:
    return request_of(name, num_prompt, max_tokens, terms=Terms(tenant=tenant, **terms))


def start_order(engine: Engine) -> list[str]:
    order: dict[str, None] = {}
    while engine.has_work:
        engine.step()
        order |= dict.fromkeys(request.request_id for request in engine.scheduler.running)
    return list(order)


def test_a_flood_of_one_tenant_does_not_delay_another():
    engine = engine_of(ScriptedRunner(100), slots=2)
    for i in range(50):
        engine.queue.add(of_tenant("loud", f"loud-{i}"))
    engine.step()
    for i in range(5):
        engine.queue.add(of_tenant("quiet", f"quiet-{i}"))
    order = start_order(engine)
    assert max(order.index(f"quiet-{i}") for i in range(5)) < 16, "one of theirs for each of the other's, not after 50"


def test_two_tenants_that_always_wait_are_served_alike_whatever_their_requests_look_like():
    engine = engine_of(ScriptedRunner(100), slots=3)
    for i in range(500):
        engine.queue.add(of_tenant("long", f"long-{i}", 150, 60))
        engine.queue.add(of_tenant("short", f"short-{i}", 20, 5))
    for _ in range(350):
        engine.step()
    served = {share.tenant: share.virtual_tokens for share in engine.scheduler.tenant_shares()}
    assert abs(served["long"] - served["short"]) < 0.2 * served["long"]


def test_a_pause_earns_no_credit():
    engine = engine_of(ScriptedRunner(100), slots=1)
    engine.queue.add(of_tenant("rested", "early", 10, 1))
    run_until_idle(engine)
    for i in range(30):
        engine.queue.add(of_tenant("busy", f"busy-{i}"))
    for _ in range(200):
        engine.step()
    for i in range(30):
        engine.queue.add(of_tenant("rested", f"rested-{i}"))
    order = start_order(engine)
    assert 3 <= sum(name.startswith("busy") for name in order[:10]) <= 7


def test_a_lower_priority_number_goes_first_and_guaranteed_before_spot():
    engine = engine_of(ScriptedRunner(100), slots=1)
    engine.queue.add(of_tenant("a", "now"))
    engine.step()
    engine.queue.add(of_tenant("a", "spot", priority=-9, service_class=ServiceClass.SPOT))
    engine.queue.add(of_tenant("a", "low", priority=5))
    engine.queue.add(of_tenant("a", "usual"))
    engine.queue.add(of_tenant("a", "high", priority=-1))
    assert [request.request_id for request in engine.queue.snapshot()] == ["high", "usual", "low", "spot"]
    assert start_order(engine) == ["now", "high", "usual", "low", "spot"]


def test_calling_everything_urgent_does_not_get_a_tenant_ahead_of_others():
    engine = engine_of(ScriptedRunner(100), slots=1)
    for i in range(20):
        engine.queue.add(of_tenant("pushy", f"pushy-{i}", priority=-100))
    engine.step()
    for i in range(5):
        engine.queue.add(of_tenant("calm", f"calm-{i}", priority=100))
    predicted = [request.request_id for request in engine.queue.snapshot()]
    assert max(predicted.index(f"calm-{i}") for i in range(5)) < 12
    order = start_order(engine)
    assert max(order.index(f"calm-{i}") for i in range(5)) < 12


def test_cached_prompt_tokens_cost_nothing():
    ledger = TenantLedger()
    account = ledger.enter("a", 100)
    account.charge_prompt(30)
    assert account.virtual_tokens == 30


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_the_head_is_the_first_of_the_snapshot_and_nobody_is_lost(seed):
    """Adds, cancels, preemptions, starts and charges in any order, beside a plain list of who must be there."""
    rng = random.Random(seed)
    queue = RequestQueue()
    waiting: dict[str, Request] = {}
    running: list[Request] = []
    for number in range(120):
        action = rng.random()
        if action < 0.5:
            service_class = rng.choice(list(ServiceClass))
            name = f"r{number}"
            waiting[name] = of_tenant(rng.choice("abc"), name, priority=rng.randint(0, 1), service_class=service_class)
            queue.add(waiting[name])
        elif action < 0.65 and waiting:
            request = waiting.pop(rng.choice(list(waiting)))
            assert queue.remove(request.request_id) is request
            queue.end(request)
        elif action < 0.85 and (head := queue.head(rng.choice(list(ServiceClass)))):
            queue.remove(head.request_id)
            running.append(waiting.pop(head.request_id))
        elif running:
            request = running.pop(rng.randrange(len(running)))
            assert request.account
            request.account.virtual_tokens += rng.randint(0, 300)
            if rng.random() < 0.5:
                waiting[request.request_id] = request
                queue.put_back(request)
            else:
                queue.end(request)
        check_queue(queue, waiting, running)


def check_queue(queue: RequestQueue, waiting: dict[str, Request], running: list[Request]) -> None:
    snapshot = queue.snapshot()
    assert sorted(request.request_id for request in snapshot) == sorted(waiting)
    assert (len(queue), queue.num_prompt_tokens) == (len(waiting), 50 * len(waiting))
    for service_class in ServiceClass:
        line = [request for request in snapshot if request.terms.service_class is service_class]
        assert queue.head(service_class) is (line[0] if line else None)
        assert set(queue.first(service_class, 3)) <= set(line)
    shares = queue.tenant_shares()
    assert sum(share.num_live for share in shares) == len(waiting) + len(running)
    assert not shares or abs(sum(share.share for share in shares) - 1) < 1e-9


def test_a_tenant_is_over_its_share_only_beside_others_and_only_with_more_than_its_part():
    queue = RequestQueue()
    for i in range(9):
        queue.add(of_tenant("loud", f"loud-{i}"))
    assert not queue.is_over_share("loud"), "there is nobody to share with"
    queue.add(of_tenant("quiet", "quiet"))
    assert (queue.is_over_share("loud"), queue.is_over_share("quiet"), queue.is_over_share("new")) == (
        True,
        False,
        False,
    )
    assert {share.tenant: share.share for share in queue.tenant_shares()} == {"loud": 0.9, "quiet": 0.1}


def test_tenants_that_went_away_are_forgotten_in_the_end():
    ledger = TenantLedger()
    for i in range(3 * MAX_IDLE_TENANTS):
        ledger.leave(ledger.enter(f"tenant-{i}", 10), 10)
    assert ledger.shares() == ()
    assert ledger.num_remembered == MAX_IDLE_TENANTS
