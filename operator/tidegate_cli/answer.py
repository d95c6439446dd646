"""What `tidegate plan` answers: a Fit with model, device and demand, as a table, as Markdown and as JSON. Pure."""

import json
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tidegate_checkpoint.config_json import why_not_served
from tidegate_cli.device import PlannedDevice
from tidegate_core.fit import Demand, Fit, Option, Remedy
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape

if TYPE_CHECKING:
    from tidegate_cli.cluster.prospect import Prospect

_Row = tuple[str, str, str]


@dataclass(frozen=True)
class Answer:
    """One planned replica."""

    shape: ModelShape
    demand: Demand
    device: PlannedDevice
    fit: Fit
    prospect: "Prospect | None" = None  # what it would do in a cluster, where one was asked

    @property
    def why_not_served(self) -> str | None:
        """Set where the model can only be sized."""
        return why_not_served(self.shape.architecture)

    @property
    def is_good(self) -> bool:
        """Whether a pool of this would run."""
        return self.fit.fits and self.why_not_served is None

    @property
    def message(self) -> str:
        """The verdict in one line."""
        return self.why_not_served or self.fit.statement

    @property
    def place(self) -> str:
        """Device and number."""
        several = f"{self.fit.tensor_parallel} devices a replica, each " if self.fit.tensor_parallel > 1 else ""
        return f"{several}{self.device.description}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What fits and yet does not do what the traffic asks for; the engine decides by the prompt."""
        there = self.prospect.warnings if self.prospect else ()
        prompt, output, context = self.demand.prompt_tokens, self.demand.output_tokens, self.fit.context
        if not self.fit.fits or prompt + output <= context:
            return there
        if prompt >= context:
            return (f"a p90 prompt has {prompt:,} tokens, the context {context:,}: such requests are refused", *there)
        longest = f"{prompt:,} + {output:,} = {prompt + output:,}"
        return (f"a p90 sequence has {longest} tokens, the context {context:,}: such answers are cut short", *there)


def to_json(answer: Answer) -> str:
    """The documented keys of `tidegate plan -o json`, no others."""
    fit, device = answer.fit, answer.device
    document = {
        "fits": fit.fits,
        "served": answer.why_not_served is None,
        "message": answer.message,
        "warnings": answer.warnings,
        "device": {"name": device.name, "memoryBytes": device.target.memory_bytes, "isChosen": device.is_chosen},
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
        **({} if fit.offered_requests is None else {"offeredRequests": fit.offered_requests}),
        **({} if answer.prospect is None else {"cluster": answer.prospect.to_document()}),
        "smaller": _option(fit.smaller),
        "larger": _option(fit.larger),
        "remedies": [
            {"kind": remedy.kind, "description": remedy.description, "context": remedy.context, "slots": remedy.slots}
            for remedy in fit.remedies
        ],
    }
    return json.dumps(document, indent=2)


def _option(option: Option | None) -> dict[str, object] | None:
    if option is None:
        return None
    terms = {"name": option.name, "memoryBytes": option.memory_bytes}
    return {**terms, "context": option.context, "slots": option.slots}


def to_table(answer: Answer) -> str:
    """Model and device, every term with its bytes, then the verdict, the load and the remedies."""
    shape, fit = answer.shape, answer.fit
    model = f"{shape.architecture}, {shape.num_parameters:,} parameters, context up to {shape.max_context:,}"
    verdict = [*([answer.why_not_served] if answer.why_not_served else []), fit.statement]
    sections = [
        f"{model}\n{answer.place}",
        _rows(_memory_rows(fit)),
        "\n".join([*verdict, *(f"warning: {warning}" for warning in answer.warnings)]),
        _rows([*_answer_rows(answer), *_load_rows(fit)]),
        "\n".join(["in this cluster", *(f"  {name:<12}{said}" for name, said in answer.prospect.rows)])
        if answer.prospect
        else "",
        _ways("what would help, cheapest first", [remedy for remedy in fit.remedies if remedy.is_offered]),
        _ways("not offered by this version", [remedy for remedy in fit.remedies if not remedy.is_offered]),
    ]
    return "\n\n".join(section for section in sections if section)


def to_markdown(answer: Answer, title: str) -> str:
    """For a comment on a pull request: the verdict first, then the same figures as tables."""
    shape, fit = answer.shape, answer.fit
    offered = [remedy for remedy in fit.remedies if remedy.is_offered]
    verdict = [*([answer.why_not_served] if answer.why_not_served else []), fit.statement]
    sections = [
        f"### {title}: {'fits' if answer.is_good else 'does not fit' if not fit.fits else 'is not served'}",
        f"{shape.architecture}, {shape.num_parameters:,} parameters, {answer.place}",
        "\n".join(f"**{sentence}**" for sentence in verdict),
        "\n".join(f"- warning: {warning}" for warning in answer.warnings),
        _markdown_table([*_answer_rows(answer), *_load_rows(fit)]),
        "\n".join(f"- **{name}**: {said}" for name, said in answer.prospect.rows) if answer.prospect else "",
        "What would help, cheapest first:" if offered else "",
        "\n".join(f"- {remedy.summary.strip()}" for remedy in offered),
        f"<details><summary>memory</summary>\n\n{_markdown_table(_memory_rows(fit))}\n\n</details>",
    ]
    return "\n\n".join(section for section in sections if section)


def _markdown_table(rows: list[_Row]) -> str:
    lines = [f"| {name.replace('|', '/')} | {value} | {note.replace('|', '/')} |" for name, value, note in rows]
    return "\n".join(["| | | |", "|---|---:|---|", *lines])


def _memory_rows(fit: Fit) -> list[_Row]:
    others = round(100 * fit.unused_share_bytes / fit.memory_bytes)
    left = fit.usable_bytes - fit.per_gpu_weight_bytes - fit.kv_pool_bytes
    terms = [
        ("device memory", fit.memory_bytes, ""),
        ("- not ours", fit.unused_share_bytes, f"{others} % left to others"),
        ("- runtime", fit.runtime_bytes, "Python, torch, driver"),
        ("- collectives", fit.collectives_bytes, "between devices"),
        ("- activation peak", fit.activation_bytes, "one full step"),
        ("- logits", fit.logits_bytes, "while sampling"),
        ("- graphs", fit.graphs_bytes, "captured kernels"),
        ("- reserve", fit.reserve_bytes, "fragmentation"),
        ("= usable", fit.usable_bytes, ""),
        ("- weights", fit.per_gpu_weight_bytes, "as the engine keeps them"),
        ("- KV pool", fit.kv_pool_bytes, f"{fit.kv_blocks:,} blocks"),
        ("= unused" if left >= 0 else "= missing", abs(left), ""),
    ]
    return [(name, format_bytes(num_bytes), note) for name, num_bytes, note in terms if num_bytes or name[0] == "="]


def _answer_rows(answer: Answer) -> list[_Row]:
    fit = answer.fit
    rows = [
        ("context", f"{fit.context:,}", _asked_for(answer)),
        ("slots", f"{fit.slots:,}", f"bound by {fit.binding_constraint}"),
        ("KV per token", format_bytes(fit.kv_bytes_per_token), "whole model"),
        ("weights", format_bytes(fit.weight_bytes), "whole model"),
        ("devices", f"{fit.tensor_parallel}", _devices_note(fit)),
        ("host memory", format_bytes(fit.resident_bytes), _host_note(fit)),
    ]
    if fit.kv_fixed_bytes_per_sequence:
        rows.insert(3, ("KV per sequence", format_bytes(fit.kv_fixed_bytes_per_sequence), "at most, in windows"))
    for title, option in (("next smaller", fit.smaller), ("next larger", fit.larger)):
        if option is not None:
            rows.append((title, option.name, _would_give(option)))
    if fit.loading_bytes:
        rows.append(("loading", format_bytes(fit.loading_floor_bytes), "peak while weights are loaded"))
    return rows


def _devices_note(fit: Fit) -> str:
    lacking = "" if fit.devices_there is None else f", no node has more than {fit.devices_there}"
    return ("a replica" if fit.tensor_parallel == 1 else "a replica, of one node; memory is of one") + lacking


def _host_note(fit: Fit) -> str:
    if fit.tensor_parallel == 1:
        return "private memory of the engine process"
    return f"private memory of the engine's {fit.tensor_parallel} processes"


def _would_give(option: Option) -> str:
    if not option.slots:
        return "would not fit"
    slots = "1 slot" if option.slots == 1 else f"{option.slots:,} slots"
    return f"would give context {option.context:,}, {slots}"


def _asked_for(answer: Answer) -> str:
    asked, limit = answer.demand.context_max, answer.shape.max_context
    smallest = f"at least {answer.fit.context_smallest:,}"
    if asked is not None and asked > limit:
        return f"asked for {asked:,}; the model goes to {limit:,}; {smallest}"
    return f"asked for {answer.fit.context_wanted:,}, {smallest}"


def _load_rows(fit: Fit) -> list[_Row]:
    rows = []
    if fit.offered_requests is not None:
        rows.append(("offered load", f"{fit.offered_requests:.1f}", "requests in flight on average"))
        if fit.slots:
            slots = "1 slot" if fit.slots == 1 else f"{fit.slots:,} slots"
            rows.append(("replicas needed", f"{ceil(fit.offered_requests / fit.slots):,}", f"at {slots} each"))
    if fit.tokens_per_second_ceiling is not None and fit.stream_tokens_per_second_ceiling is not None:
        rows.append(("token rate", f"{fit.tokens_per_second_ceiling:,.0f}/s", "most that bandwidth allows, all slots"))
        rows.append(("", f"{fit.stream_tokens_per_second_ceiling:,.0f}/s", "one sequence alone"))
    return rows


def _ways(title: str, remedies: list[Remedy]) -> str:
    return "\n".join([title, *(f"  {remedy.summary}" for remedy in remedies)]) if remedies else ""


def _rows(rows: list[_Row]) -> str:
    return "\n".join(f"{name:<18}{value:>14}  {note}".rstrip() for name, value, note in rows)
