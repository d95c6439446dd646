"""A run as pictures: SVG texts for the report. matplotlib draws them, without a display."""

import io
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tidegate_cli.bench.outcome import Ending, Outcome

NUM_BINS = 120
COLOURS = {Ending.COMPLETED: "#1f77b4", Ending.REJECTED: "#ff7f0e", Ending.FAILED: "#d62728"}


def throughput(outcomes: Sequence[Outcome]) -> str:
    """Tokens a second and requests under way, over the run."""
    moments = [moment for outcome in outcomes for moment in outcome.event_seconds]
    end = max((outcome.ended_seconds for outcome in outcomes), default=1.0) or 1.0

    def draw(axes: Axes) -> None:
        width = end / NUM_BINS
        axes.hist(moments, bins=NUM_BINS, range=(0, end), weights=[1 / width] * len(moments), color="#9ecae1")
        axes.set_ylabel("pieces of text a second")
        beside = axes.twinx()
        beside.step(*_under_way(outcomes), where="post", color="#08519c", linewidth=1)
        beside.set_ylabel("requests under way")
        axes.set_xlabel("seconds since the run began")

    return _svg(draw)


def latencies(outcomes: Sequence[Outcome]) -> str:
    """Which share of requests, and of gaps between pieces of text, stayed below how many milliseconds."""
    done = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETED]
    curves: dict[str, list[float | None]] = {
        "TTFT": [outcome.ttft_seconds for outcome in done],
        "ITL": [gap for outcome in done for gap in outcome.gaps_seconds()],
        "end to end": [outcome.e2e_seconds for outcome in done],
    }

    def draw(axes: Axes) -> None:
        for name, seconds in curves.items():
            ordered = sorted(max(second * 1000, 0.01) for second in seconds if second is not None)
            if ordered:
                axes.step(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], label=name)
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds")
        axes.set_ylabel("share at or below")
        if done:
            axes.legend(loc="lower right")

    return _svg(draw)


def first_tokens(outcomes: Sequence[Outcome]) -> str:
    """Each request at the moment it was sent: its time to the first token, or that it was turned away."""

    def draw(axes: Axes) -> None:
        for ending, colour in COLOURS.items():
            chosen = [outcome for outcome in outcomes if outcome.ending is ending]
            heights = [(outcome.ttft_seconds or outcome.e2e_seconds) * 1000 for outcome in chosen]
            if chosen:
                axes.scatter([o.sent_seconds for o in chosen], heights, s=8, color=colour, label=ending.value)
        axes.set_xlabel("sent, seconds since the run began")
        axes.set_ylabel("TTFT, or time to the refusal (ms)")
        if outcomes:
            axes.legend(loc="upper left")

    return _svg(draw)


def _under_way(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    changes = sorted([(o.sent_seconds, 1) for o in outcomes] + [(o.ended_seconds, -1) for o in outcomes])
    times, counts, now = [0.0], [0], 0
    for moment, change in changes:
        now += change
        times.append(moment)
        counts.append(now)
    return times, counts


def _svg(draw: Callable[[Axes], None]) -> str:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    draw(axes)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
