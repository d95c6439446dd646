"""A hub's model from its repository to its answers: fetched into a cache, mapped through its links, computed."""

from pathlib import Path

from model_hub.repository import Repository
from model_hub.server import model_hub
from running import answers, greedy_params
from tidegate_core.hub import HubSource
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.hub.cache import HubCache
from tidegate_engine.hub.client import Hub
from tidegate_engine.hub.download import Patience, download
from tidegate_engine.hub.selection import select
from tiny_models import greedy, save_tiny_model

PROMPT = [3, 100, 42, 8, 15, 16, 23]


def test_an_engine_answers_from_the_cache_as_transformers_does_from_the_repository(tmp_path: Path) -> None:
    reference = save_tiny_model("llama", tmp_path / "repository")
    with model_hub(Repository("tiny/llama", tmp_path / "repository")) as serving:
        hub = Hub(serving.url)
        selection = select(hub, HubSource("tiny/llama"), "main")
        path = download(hub, selection, HubCache(tmp_path / "cache"), Patience(), len)
    runner = TorchRunner.load(EngineLaunch(model=str(path), kv_memory=2**21, context=256, threads=2), path)
    assert answers(runner, [PROMPT], [greedy_params(12)]) == [greedy(reference, PROMPT, 12)]
