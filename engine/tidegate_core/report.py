"""A Fit for readers: one sentence for conditions and errors, a table for people, JSON for programs."""

import json

from tidegate_core.fit import Constraint, Fit
from tidegate_core.quantity import format_bytes


def statement(fit: Fit) -> str:
    """The answer in a sentence with its numbers; what does not fit is named with what it needs and what there is."""
    if not fit.fits:
        return f"does not fit: {_why_not(fit)}"
    shrunk = "" if fit.context == fit.context_wanted else f" (shrunk from {fit.context_wanted:,})"
    pool, weights = format_bytes(fit.kv_pool_bytes), format_bytes(fit.per_gpu_weight_bytes)
    return (
        f"fits: {pool} of KV cache beside {weights} of weights give context {fit.context:,}{shrunk} and {_slots(fit)}"
    )


def _why_not(fit: Fit) -> str:
    match fit.binding_constraint:
        case Constraint.MODEL_CONTEXT:
            return f"context.min {fit.context_smallest:,} is above the longest context, {fit.context_wanted:,}"
        case Constraint.TENSOR_PARALLEL:
            return f"the attention heads cannot be divided between {fit.tensor_parallel} devices"
        case Constraint.OVERHEAD:
            needed, memory = format_bytes(fit.overhead_bytes), format_bytes(fit.memory_bytes)
            return f"the engine needs {needed} before any weight, the device has {memory}"
        case Constraint.WEIGHTS:
            weights, usable = format_bytes(fit.per_gpu_weight_bytes), format_bytes(fit.usable_bytes)
            return f"weights take {weights} of the {usable} that are usable, which leaves no room for KV cache"
        case Constraint.LOADING:
            needed, memory = format_bytes(fit.loading_floor_bytes), format_bytes(fit.memory_bytes)
            return f"loading takes up to {needed} while weights are decoded, the device has {memory}"
        case _:
            needed = format_bytes(fit.context_smallest * fit.per_gpu_kv_bytes_per_token)
            left = format_bytes(fit.usable_bytes - fit.per_gpu_weight_bytes)
            return (
                f"one sequence of {fit.context_smallest:,} tokens needs {needed} of KV cache, {left} are left beside "
                f"the weights: enough for {fit.context:,} tokens"
            )


def to_json(fit: Fit) -> str:
    """The documented keys of `tidegate plan -o json`, no others."""
    document = {
        "fits": fit.fits,
        "bindingConstraint": fit.binding_constraint,
        "context": fit.context,
        "slots": fit.slots,
        "tensorParallel": fit.tensor_parallel,
        "kvBlocks": fit.kv_blocks,
        "weightBytes": fit.weight_bytes,
        "kvBytesPerToken": fit.kv_bytes_per_token,
        "kvFixedBytesPerSequence": fit.kv_fixed_bytes_per_sequence,
        "perGpu": {"weightBytes": fit.per_gpu_weight_bytes, "kvBytesPerToken": fit.per_gpu_kv_bytes_per_token},
        "loadingBytes": fit.loading_bytes,
        "residentBytes": fit.resident_bytes,
        "remedies": [
            {"kind": remedy.kind, "description": remedy.description, "context": remedy.context, "slots": remedy.slots}
            for remedy in fit.remedies
        ],
    }
    return json.dumps(document, indent=2)


def to_table(fit: Fit) -> str:
    """Every term with its bytes, then the answer, the load and the remedies."""
    sections = [_rows(_memory_rows(fit)), fit.statement, _rows(_answer_rows(fit))]
    if fit.remedies:
        sections.append("what would help, cheapest first\n" + "\n".join(f"  {r.description}" for r in fit.remedies))
    return "\n\n".join(sections)


def _memory_rows(fit: Fit) -> list[tuple[str, str, str]]:
    terms = [
        ("device memory", fit.memory_bytes, ""),
        ("- not ours", fit.unused_share_bytes, "1 - utilisation"),
        ("- runtime", fit.runtime_bytes, "Python, torch, driver"),
        ("- collectives", fit.collectives_bytes, "between devices"),
        ("- activation peak", fit.activation_bytes, "one full step"),
        ("- logits", fit.logits_bytes, "while sampling"),
        ("- graphs", fit.graphs_bytes, "captured kernels"),
        ("- reserve", fit.reserve_bytes, "fragmentation"),
        ("= usable", fit.usable_bytes, ""),
        ("- weights", fit.per_gpu_weight_bytes, "as the engine keeps them"),
        ("- KV pool", fit.kv_pool_bytes, f"{fit.kv_blocks:,} blocks"),
        ("= unused", fit.usable_bytes - fit.per_gpu_weight_bytes - fit.kv_pool_bytes, ""),
    ]
    return [(name, format_bytes(num_bytes), note) for name, num_bytes, note in terms if num_bytes or name[0] == "="]


def _answer_rows(fit: Fit) -> list[tuple[str, str, str]]:
    rows = [
        ("context", f"{fit.context:,}", f"asked for {fit.context_wanted:,}, at least {fit.context_smallest:,}"),
        ("slots", f"{fit.slots:,}", f"bound by {fit.binding_constraint}"),
        ("KV per token", format_bytes(fit.kv_bytes_per_token), "whole model"),
        ("weights", format_bytes(fit.weight_bytes), "whole model"),
        ("devices", f"{fit.tensor_parallel}", "a replica"),
        ("host memory", format_bytes(fit.resident_bytes), "private memory of the engine process"),
    ]
    if fit.loading_bytes:
        rows.append(("loading", format_bytes(fit.loading_floor_bytes), "peak while weights are loaded"))
    if fit.offered_requests is not None:
        rows.append(("offered load", f"{fit.offered_requests:.1f}", "requests in flight on average"))
    if fit.tokens_per_second_ceiling is not None and fit.stream_tokens_per_second_ceiling is not None:
        rows.append(("token rate", f"{fit.tokens_per_second_ceiling:,.0f}/s", "most that bandwidth allows, all slots"))
        rows.append(("", f"{fit.stream_tokens_per_second_ceiling:,.0f}/s", "one sequence alone"))
    return rows


def _rows(rows: list[tuple[str, str, str]]) -> str:
    return "\n".join(f"{name:<18}{value:>14}  {note}".rstrip() for name, value, note in rows)


def _slots(fit: Fit) -> str:
    return "1 slot" if fit.slots == 1 else f"{fit.slots:,} slots"
