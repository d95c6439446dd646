"""Models of a hub, asked by the real client over real HTTP: what is read, what is fetched, what every refusal is."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_hub.models import NEEDED, tiny_ggufs, tiny_llama
from model_hub.repository import Repository
from model_hub.server import ModelHub, model_hub
from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.shape import read_shape
from tidegate_core.hub import HubSource, Snapshot
from tidegate_core.termination import ExitCode
from tidegate_engine.hub.cache import HubCache
from tidegate_engine.hub.client import Hub
from tidegate_engine.hub.download import LONGEST_WAIT_SECONDS, MAX_TRIES, Patience, download
from tidegate_engine.hub.errors import (
    HubError,
    HubThrottled,
    HubUnreachable,
    ModelGated,
    ModelNotFound,
    RevisionNotFound,
    TokenInvalid,
)
from tidegate_engine.hub.selection import Selection, select
from tidegate_engine.hub.skeleton import inspect

LLAMA = HubSource("tiny/llama")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    """An open model, a gated one, a private one; one token that may see all, one that may see nothing."""
    allowed: Any = {"accepted_tokens": {"good"}}
    models = (
        tiny_llama(tmp_path / "hub", refs=("main", "v1/rc")),
        tiny_llama(tmp_path / "hub", "tiny/gated", is_gated=True, **allowed),
        tiny_llama(tmp_path / "hub", "tiny/private", is_private=True, **allowed),
        tiny_ggufs(tmp_path / "hub", "tiny-Q8.gguf"),
        tiny_ggufs(tmp_path / "hub", "a.gguf", "parts/b.gguf", "c.gguf", name="tiny/ggufs"),
    )
    with model_hub(*models, tokens=("good", "other")) as serving:
        yield serving


class Waits:
    """Sleep that takes no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def patience(self) -> Patience:
        return Patience(self.seconds.append, random.Random(7))


def fetched(hub: ModelHub, cache: Path, source: HubSource = LLAMA, waits: Waits | None = None) -> Path:
    client = Hub(hub.url)
    return download(client, select(client, source, "main"), HubCache(cache), (waits or Waits()).patience(), len)


def directory_of(hub: ModelHub, name: str = "tiny/llama") -> Path:
    return hub.repositories[name].directory


def begun(cache: Path, hub: ModelHub, beginning: bytes) -> None:
    """What a killed download leaves of the first weights."""
    repository = hub.repositories["tiny/llama"]
    file = repository.files[NEEDED[1]]
    partial = HubCache(cache).partial(Snapshot("tiny/llama", repository.commit), file.name, file.etag)
    partial.write_bytes(beginning)


def large_files(hub: ModelHub) -> list[str]:
    """Paths of the weights in storage."""
    files = hub.repositories["tiny/llama"].files
    return [f"/storage/{files[name].sha256}" for name in NEEDED if files[name].is_large]


def test_a_shape_is_read_from_the_hub_as_from_a_directory_and_weights_stay_where_they_are(hub: ModelHub) -> None:
    inspected = inspect(Hub(hub.url), "hf://tiny/llama", "main")
    assert inspected.shape == read_shape(directory_of(hub))
    assert inspected.snapshot == Snapshot("tiny/llama", hub.repositories["tiny/llama"].commit)
    assert inspected.download_bytes == sum((directory_of(hub) / name).stat().st_size for name in NEEDED)
    asked = [each for path in large_files(hub) for each in hub.ranges_of(path)]
    assert asked
    assert all(each is not None for each in asked), "only parts were asked for"


def test_a_gguf_model_is_read_from_its_head(hub: ModelHub) -> None:
    inspected = inspect(Hub(hub.url), "hf://tiny/gguf", "main")
    assert inspected.shape == read_shape(directory_of(hub, "tiny/gguf") / "tiny-Q8.gguf")
    assert inspected.snapshot is not None
    assert inspected.snapshot.path.endswith(f"/snapshots/{inspected.snapshot.commit}/tiny-Q8.gguf")


def test_of_several_gguf_files_one_has_to_be_named(hub: ModelHub) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"holds 2 GGUF files .*hf://tiny/ggufs/a\.gguf"):
        inspect(Hub(hub.url), "hf://tiny/ggufs", "main")
    assert inspect(Hub(hub.url), "hf://tiny/ggufs/parts/b.gguf", "main").shape.architecture == "llama"
    with pytest.raises(ModelNotFound, match=r"has no file d\.gguf"):
        inspect(Hub(hub.url), "hf://tiny/ggufs/d.gguf", "main")


def test_a_branch_with_a_slash_and_a_commit_are_revisions(hub: ModelHub) -> None:
    commit = hub.repositories["tiny/llama"].commit
    for revision in ("v1/rc", commit):
        assert select(Hub(hub.url), LLAMA, revision).snapshot.commit == commit


@pytest.mark.parametrize(
    ("model", "token", "kind", "code"),
    [
        ("tiny/gated@main", None, ModelGated, ExitCode.ACCESS_DENIED),
        ("tiny/gated@main", "other", ModelGated, ExitCode.ACCESS_DENIED),
        ("tiny/gated@main", "forged", TokenInvalid, ExitCode.ACCESS_DENIED),
        ("tiny/private@main", None, ModelNotFound, ExitCode.MODEL_UNREACHABLE),
        ("tiny/private@main", "other", ModelNotFound, ExitCode.MODEL_UNREACHABLE),
        ("tiny/none@main", None, ModelNotFound, ExitCode.MODEL_UNREACHABLE),
        ("tiny/none@main", "good", ModelNotFound, ExitCode.MODEL_UNREACHABLE),
        ("tiny/llama@v9", None, RevisionNotFound, ExitCode.MODEL_UNREACHABLE),
    ],
)
def test_every_refusal_has_its_own_name_and_says_what_to_do(
    hub: ModelHub, model: str, token: str | None, kind: type[HubError], code: ExitCode
) -> None:
    repo, _, revision = model.partition("@")
    with pytest.raises(kind) as refusal:
        inspect(Hub(hub.url, token), f"hf://{repo}", revision)
    words = refusal.value.last_words()
    assert (refusal.value.code, words.reason) == (code, kind.__name__)
    assert repo in words.message or kind is TokenInvalid
    assert "model." in words.message, "the field to change"


@pytest.mark.parametrize("repo", ["tiny/gated", "tiny/private"])
def test_an_accepted_token_opens_the_door_and_stays_with_the_hub(hub: ModelHub, repo: str, tmp_path: Path) -> None:
    client = Hub(hub.url, "good")
    assert inspect(client, f"hf://{repo}", "main").shape == read_shape(directory_of(hub, repo))
    path = download(client, select(client, HubSource(repo), "main"), HubCache(tmp_path), Waits().patience(), len)
    assert read_shape(path) == read_shape(directory_of(hub, repo))
    stored = [each for each in hub.asked if each.path.startswith("/storage/")]
    assert stored
    assert not any(each.token for each in stored), "where the hub sends us to must not learn the token"


def test_a_throttling_hub_says_for_how_long(hub: ModelHub) -> None:
    hub.faults.num_throttled, hub.faults.retry_after_seconds = 1, 77
    with pytest.raises(HubThrottled) as refusal:
        inspect(Hub(hub.url), "hf://tiny/llama", "main")
    assert refusal.value.last_words().retry_after_seconds == 77


def test_what_is_no_hub_is_unreachable(hub: ModelHub) -> None:
    hub.faults.num_failing = 1
    with pytest.raises(HubUnreachable, match="HTTP 503"):
        inspect(Hub(hub.url), "hf://tiny/llama", "main")
    with pytest.raises(HubUnreachable, match="HF_ENDPOINT"):
        inspect(Hub("http://127.0.0.1:9"), "hf://tiny/llama", "main")


@pytest.mark.parametrize("commit", ["../../../etc", "main", "f" * 39])
def test_what_is_no_commit_names_no_directory_of_ours(hub: ModelHub, commit: str) -> None:
    hub.faults.commit = commit
    with pytest.raises(HubUnreachable, match="tells no commit for tiny/llama@main"):
        select(Hub(hub.url), LLAMA, "main")


def test_another_commit_than_was_asked_for_is_refused(hub: ModelHub) -> None:
    asked, hub.faults.commit = hub.repositories["tiny/llama"].commit, "f" * 40
    with pytest.raises(HubUnreachable, match=f"answers with {'f' * 40} for tiny/llama@{asked}"):
        select(Hub(hub.url), LLAMA, asked)


def test_what_is_no_etag_names_no_file_of_ours(hub: ModelHub, tmp_path: Path) -> None:
    hub.faults.etag = "../../../../elsewhere"
    with pytest.raises(HubUnreachable, match="tells no ETag for tiny/llama/"):
        fetched(hub, tmp_path / "deep" / "cache")
    assert not list(tmp_path.rglob("elsewhere*"))


def test_of_a_file_that_does_not_end_no_more_is_taken_than_was_asked_for(hub: ModelHub) -> None:
    client, commit = Hub(hub.url), hub.repositories["tiny/llama"].commit
    hub.faults.is_endless = True
    assert len(client.read("tiny/llama", commit, NEEDED[1], num_bytes=1000)) == 1000
    with pytest.raises(HubUnreachable, match=r"config\.json does not end"):
        client.read("tiny/llama", commit, "config.json")


@pytest.mark.parametrize("seconds", [99_999_999_999_999, 31_536_000])
def test_a_wait_that_no_hub_means_is_none(hub: ModelHub, seconds: int) -> None:
    hub.faults.num_throttled, hub.faults.retry_after_seconds = 1, seconds
    with pytest.raises(HubThrottled) as refusal:
        inspect(Hub(hub.url), "hf://tiny/llama", "main")
    assert refusal.value.retry_after_seconds is None


def test_only_what_an_engine_needs_is_fetched_into_the_hubs_own_layout(hub: ModelHub, tmp_path: Path) -> None:
    path = fetched(hub, tmp_path)
    commit = hub.repositories["tiny/llama"].commit
    assert path == tmp_path / "models--tiny--llama" / "snapshots" / commit
    assert sorted(file.name for file in path.iterdir()) == sorted(NEEDED)
    for name in NEEDED:
        assert (path / name).read_bytes() == (directory_of(hub) / name).read_bytes()
    assert read_shape(path) == read_shape(directory_of(hub))


def test_the_hubs_own_client_finds_the_model_in_the_cache(hub: ModelHub, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    path = fetched(hub, tmp_path)
    found = try_to_load_from_cache("tiny/llama", "config.json", cache_dir=tmp_path, revision=path.name)
    assert found == str(path / "config.json")


def test_what_is_there_is_not_fetched_again(hub: ModelHub, tmp_path: Path) -> None:
    fetched(hub, tmp_path)
    hub.asked.clear()
    fetched(hub, tmp_path)
    assert [each.path.rpartition("/")[2] for each in hub.asked] == ["main", "model.safetensors.index.json"]


def test_a_file_that_a_killed_download_has_begun_is_continued(hub: ModelHub, tmp_path: Path) -> None:
    file = hub.repositories["tiny/llama"].files[NEEDED[1]]
    begun(tmp_path, hub, file.path.read_bytes()[:1000])
    path = fetched(hub, tmp_path)
    assert hub.ranges_of(f"/storage/{file.sha256}") == ["bytes=1000-"]
    assert (path / file.name).read_bytes() == file.path.read_bytes()
    assert not list(tmp_path.rglob("*.partial"))


def test_a_connection_that_breaks_in_the_middle_of_a_file_costs_no_byte_of_the_model(
    hub: ModelHub, tmp_path: Path
) -> None:
    hub.faults.num_cut_short, hub.faults.served_before_cut_bytes = 1, 1000
    path = fetched(hub, tmp_path)
    assert not hub.faults.num_cut_short
    for name in NEEDED:
        assert (path / name).read_bytes() == (directory_of(hub) / name).read_bytes()


def test_a_beginning_that_belongs_to_another_file_is_noticed_and_thrown_away(hub: ModelHub, tmp_path: Path) -> None:
    begun(tmp_path, hub, b"x" * 1000)
    with pytest.raises(CorruptCheckpoint, match="arrived damaged"):
        fetched(hub, tmp_path)
    assert read_shape(fetched(hub, tmp_path)) == read_shape(directory_of(hub))


def test_a_hub_that_fails_is_asked_later_and_later_and_out_of_step(hub: ModelHub, tmp_path: Path) -> None:
    client, waits = Hub(hub.url), Waits()
    selection = select(client, LLAMA, "main")
    only = Selection(selection.snapshot, selection.weights, {"config.json": selection.bytes_by_name["config.json"]})
    hub.faults.num_failing = 5
    download(client, only, HubCache(tmp_path), waits.patience(), len)
    assert len(waits.seconds) == 5
    usual = [2.0, 4.0, 8.0, 16.0, 32.0]
    assert all(low <= seconds <= 1.5 * low for low, seconds in zip(usual, waits.seconds, strict=True))
    assert all(seconds not in usual for seconds in waits.seconds), "pools do not come back at once"


def test_a_hub_that_throttles_is_left_alone_for_as_long_as_it_asks(hub: ModelHub, tmp_path: Path) -> None:
    client, waits = Hub(hub.url), Waits()
    selection = select(client, LLAMA, "main")
    hub.faults.num_throttled, hub.faults.retry_after_seconds = 1, 300
    download(client, selection, HubCache(tmp_path), waits.patience(), len)
    assert len(waits.seconds) == 1
    assert 300 <= waits.seconds[0] <= 450


def test_a_hub_that_never_comes_back_ends_the_download_with_its_reason(hub: ModelHub, tmp_path: Path) -> None:
    client, waits = Hub(hub.url), Waits()
    selection = select(client, LLAMA, "main")
    hub.faults.num_failing = 10_000
    with pytest.raises(HubUnreachable):
        download(client, selection, HubCache(tmp_path), waits.patience(), len)
    assert max(waits.seconds) <= 1.5 * LONGEST_WAIT_SECONDS
    assert len(waits.seconds) <= len(NEEDED) * (MAX_TRIES + 1)


def test_what_two_revisions_share_is_fetched_once(hub: ModelHub, tmp_path: Path) -> None:
    before = hub.repositories["tiny/llama"].commit
    fetched(hub, tmp_path)
    (directory_of(hub) / "tokenizer_config.json").write_text('{"model_max_length": 256}')
    changed = hub.repositories["tiny/llama"] = Repository("tiny/llama", directory_of(hub))
    hub.asked.clear()
    path = fetched(hub, tmp_path)
    assert path.name == changed.commit != before
    assert read_shape(path) == read_shape(directory_of(hub))
    assert not [each for each in hub.asked if each.method == "GET" and each.path.startswith("/storage/")]


def test_an_older_snapshot_goes_and_what_is_kept_stays_whole(hub: ModelHub, tmp_path: Path) -> None:
    kept = fetched(hub, tmp_path)
    cache = HubCache(tmp_path)
    snapshot = Snapshot("tiny/llama", kept.name)
    stale = tmp_path / "models--tiny--llama" / "snapshots" / ("0" * 40)
    stale.mkdir()
    (stale.parents[1] / "blobs" / "old").write_text("weights")
    (stale / "model.safetensors").symlink_to("../../blobs/old")
    (tmp_path / "models--other--model" / "snapshots" / ("1" * 40)).mkdir(parents=True)
    assert len(cache.prune({snapshot})) == 2
    assert not (stale.parents[1] / "blobs" / "old").exists()
    assert not (tmp_path / "models--other--model").exists()
    assert read_shape(kept) == read_shape(directory_of(hub))
