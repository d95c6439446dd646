"""Does `tidegate bench` measure right? `python -m benchmarks.loadgen [--repeats N]`: the same load, GuideLLM beside it.

One engine process (a simulated model, so that steps take the same time whoever asks) is loaded by both tools in turn,
A B A B, and medians of their figures are compared as ratios. GuideLLM (Red Hat, vLLM project) is installed into an
environment of its own outside the tree, since it brings half a machine-learning stack along.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.paths import cache_home

GUIDELLM = "guidellm==0.8.1"
ROOT = Path(__file__).parent.parent
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 60, 128, 32


@dataclass(frozen=True)
class Figures:
    """What both tools report of a run."""

    output_tokens_per_second: float
    ttft_p50_milliseconds: float
    tpot_p50_milliseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    peer = guidellm()
    with tempfile.TemporaryDirectory() as folder, engine() as url:
        write_byte_tokenizer(Path(folder) / "tokenizer")
        for num_clients in (1, 4):
            ours, theirs = [], []
            for _ in range(repeats):
                ours.append(by_tidegate(url, num_clients))
                theirs.append(by_guidellm(peer, url, num_clients, Path(folder)))
            print_ratios(num_clients, ours, theirs)
    print(f"load average {os.getloadavg()[0]:.1f}")


def print_ratios(num_clients: int, ours: list[Figures], theirs: list[Figures]) -> None:
    print(f"{num_clients} client(s), {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out: tidegate / guidellm")
    for name in Figures.__dataclass_fields__:
        mine, other = (statistics.median(getattr(figures, name) for figures in runs) for runs in (ours, theirs))
        print(f"  {name:<28}{mine:>9.1f} /{other:>9.1f} = {mine / other:.3f}", flush=True)


def by_tidegate(url: str, num_clients: int) -> Figures:
    lengths = ("--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    load = ("--requests", str(NUM_REQUESTS), "--concurrency", str(num_clients), *lengths)
    command = [sys.executable, "-m", "tidegate_cli", "bench", "--url", url, "--model", "tide", *load, "-o", "json"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    return Figures(
        figures["outputTokensPerSecond"], figures["ttftMilliseconds"]["p50"], figures["tpotMilliseconds"]["p50"]
    )


def by_guidellm(executable: Path, url: str, num_clients: int, folder: Path) -> Figures:
    output = folder / "guidellm.json"
    options = {
        "--backend": f"kind=openai_http,target={url},model=tide,request_format=/v1/completions",
        "--profile": f"kind=concurrent,streams={num_clients}",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer": f"kind=huggingface_auto,model={folder / 'tokenizer'}",
        "--data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "--output": f"kind=json,path={output}",
    }
    arguments = [part for option in options.items() for part in option]
    subprocess.run([executable, "run", "--disable-console", *arguments], check=True, capture_output=True, cwd=folder)
    metrics = json.loads(output.read_text())["benchmarks"][0]["metrics"]

    def value(metric: str, choose: Callable[[dict], float]) -> float:
        return choose(metrics[metric]["successful"])

    return Figures(
        value("output_tokens_per_second", lambda values: values["mean"]),
        value("time_to_first_token_ms", lambda values: values["percentiles"]["p50"]),
        value("inter_token_latency_ms", lambda values: values["percentiles"]["p50"]),
    )


@contextmanager
def engine() -> Iterator[str]:
    command = [sys.executable, "-m", "tidegate_engine", "tide", "--runner", "sim", "--host", "127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "engine")}
    process = subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0", "--context", "2048", "--slots", "8"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        events = map(json.loads, process.stdout)
        listening = next(event for event in events if event["event"] == "listening")
        next(event for event in events if event["event"] == "ready")
        yield f"http://127.0.0.1:{listening['port']}"
    finally:
        process.kill()
        process.wait()


def guidellm() -> Path:
    """Its executable, installed on first use."""
    home = cache_home() / GUIDELLM.replace("==", "-")
    executable = home / "bin" / "guidellm"
    if not executable.exists():
        uv = os.environ.get("UV") or str(cache_home() / "uv" / "bin" / "uv")
        subprocess.run([uv, "venv", "-q", "--allow-existing", home], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", home / "bin" / "python", GUIDELLM], check=True)
    return executable


def write_byte_tokenizer(folder: Path) -> None:
    """The simulated model's tokens are bytes; GuideLLM makes prompts of so many tokens with this."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


if __name__ == "__main__":
    main()
