import json
from collections import Counter

import pytest

from checkpoint_files import TINY_LLAMA, gguf_bytes, safetensors_bytes, tiny_gguf, write_config
from real_model import gemma_gguf
from tidegate_checkpoint.config import parse_config
from tidegate_checkpoint.config_json import complete
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.layout import model_tensors
from tidegate_checkpoint.shape import read_shape
from tidegate_core.shape import AttentionGroup, LayerKind, ModelShape, TpRule, WeightRole

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN2_HALF_B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096,
}  # fmt: skip
MIXTRAL_8X7B = MISTRAL_7B | {"model_type": "mixtral", "sliding_window": None}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "max_position_embeddings": 163840,
    "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
    "q_lora_rank": None,
}  # fmt: skip


def full(num_layers, num_kv_heads, head_dim):
    return (AttentionGroup(LayerKind.FULL, num_layers, num_kv_heads, head_dim),)


@pytest.mark.parametrize(
    ("config", "num_parameters", "attention"),
    [
        (LLAMA_8B, 8_030_261_248, full(32, 8, 128)),
        (QWEN2_HALF_B, 494_032_768, full(24, 2, 64)),
        (QWEN3_8B, 8_190_735_360, full(36, 8, 128)),
        (MISTRAL_7B, 7_241_732_096, (AttentionGroup(LayerKind.WINDOW, 32, 8, 128, 4096),)),
        (MIXTRAL_8X7B, 46_702_792_704, full(32, 8, 128)),
        (DEEPSEEK_V3, 671_026_419_200, (AttentionGroup(LayerKind.MLA, 61, 1, 576),)),
        (DEEPSEEK_V2_LITE, 15_706_484_224, (AttentionGroup(LayerKind.MLA, 27, 1, 576),)),
    ],
    ids=["llama-3.1-8b", "qwen2.5-0.5b", "qwen3-8b", "mistral-7b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite"],
)
def test_a_config_alone_gives_the_published_parameter_count(tmp_path, config, num_parameters, attention):
    shape = read_shape(write_config(tmp_path, config))

    assert shape.num_parameters == num_parameters
    assert shape.attention == attention
    assert sum(group.num_bytes for group in shape.weights) == 2 * num_parameters
    assert ModelShape.from_json(shape.to_json()) == shape


def test_the_real_gemma_file_has_its_published_shape():
    shape = read_shape(gemma_gguf())

    assert shape == read_shape(gemma_gguf().parent)
    assert shape.num_parameters == 268_098_176
    assert (shape.num_attention_heads, shape.vocab_size, shape.max_context) == (4, 262_144, 32_768)
    assert shape.attention == (
        AttentionGroup(LayerKind.FULL, 3, 1, 256),
        AttentionGroup(LayerKind.WINDOW, 15, 1, 256, 512),
    )
    assert shape.has_tied_embeddings
    embedding = next(group for group in shape.weights if group.role is WeightRole.EMBEDDING)
    assert (embedding.dtype, embedding.num_bytes) == ("q8_0", 262_144 * 640 // 32 * 34)
    assert not any(group.role is WeightRole.HEAD for group in shape.weights)


def tiny_shapes(config):
    parsed = parse_config(complete(config, "config.json"), "config.json")
    return {tensor.name: tensor.shape for tensor in model_tensors(parsed)}


@pytest.fixture
def tiny(tmp_path):
    """A complete tiny model directory."""
    directory = write_config(tmp_path / "model", TINY_LLAMA)
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tiny_shapes(TINY_LLAMA)))
    return directory


def test_stored_weights_and_config_alone_agree(tiny, tmp_path):
    stored, computed = read_shape(tiny), read_shape(write_config(tmp_path / "alone", TINY_LLAMA))

    assert stored == computed


def test_weights_are_grouped_by_what_tensor_parallelism_does_to_them(tiny):
    groups = Counter()
    for group in read_shape(tiny).weights:
        groups[group.role, group.rule] += group.num_elements

    assert groups == {
        (WeightRole.EMBEDDING, TpRule.SPLIT): 48 * 32,
        (WeightRole.HEAD, TpRule.SPLIT): 48 * 32,
        (WeightRole.LINEAR, TpRule.SPLIT): 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32),
        (WeightRole.NORM, TpRule.REPLICATED): 5 * 32,
    }


def test_matrices_of_another_width_are_another_group(tiny):
    widths = {group.role: set() for group in read_shape(tiny).weights}
    for group in read_shape(tiny).weights:
        widths[group.role].add(group.width)

    assert widths[WeightRole.LINEAR] == {32, 64}
    assert widths[WeightRole.EMBEDDING] == widths[WeightRole.HEAD] == {32}
    assert widths[WeightRole.NORM] == {None}


def test_latent_projections_and_routers_are_on_every_device(tmp_path):
    groups = read_shape(write_config(tmp_path, DEEPSEEK_V2_LITE)).weights
    replicated = {group.role: group.num_elements for group in groups if group.rule is TpRule.REPLICATED}

    assert replicated[WeightRole.LINEAR] == 27 * 2048 * (512 + 64) + 26 * 64 * 2048


def test_a_tied_head_that_is_stored_all_the_same_counts_once(tmp_path):
    tied = TINY_LLAMA | {"tie_word_embeddings": True}
    directory = write_config(tmp_path, tied)
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tiny_shapes(TINY_LLAMA)))

    shape = read_shape(directory)

    assert shape.num_parameters == read_shape(write_config(tmp_path / "alone", tied)).num_parameters


def test_the_language_model_of_a_multimodal_checkpoint_counts_alone(tmp_path):
    outer = {"model_type": "llava", "text_config": TINY_LLAMA}
    shapes = {f"language_model.{name}": shape for name, shape in tiny_shapes(TINY_LLAMA).items()}
    directory = write_config(tmp_path, outer)
    (directory / "model.safetensors").write_bytes(safetensors_bytes(shapes | {"vision_tower.patch.weight": (64, 64)}))

    assert read_shape(directory).num_parameters == read_shape(write_config(tmp_path / "alone", outer)).num_parameters


def test_a_tensor_the_config_calls_for_but_no_file_has_is_named(tiny):
    shapes = tiny_shapes(TINY_LLAMA)
    del shapes["model.layers.1.mlp.up_proj.weight"]
    (tiny / "model.safetensors").write_bytes(safetensors_bytes(shapes))

    with pytest.raises(CorruptCheckpoint, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        read_shape(tiny)


def test_a_tensor_of_another_shape_than_the_config_calls_for_is_named(tiny):
    write_config(tiny, TINY_LLAMA | {"intermediate_size": 96})

    with pytest.raises(CorruptCheckpoint, match=r"mlp\.gate_proj\.weight' has shape \(64, 32\), .* \(96, 32\)"):
        read_shape(tiny)


def test_the_fingerprint_changes_with_config_and_tensors_and_with_nothing_else(tiny, tmp_path):
    before = read_shape(tiny).fingerprint

    assert read_shape(tiny).fingerprint == before
    (tiny / "README.md").write_text("hello")
    assert read_shape(tiny).fingerprint == before
    write_config(tiny, TINY_LLAMA | {"rope_theta": 5e5})
    after_config = read_shape(tiny).fingerprint
    assert after_config != before
    (tiny / "model.safetensors").write_bytes(safetensors_bytes(tiny_shapes(TINY_LLAMA), dtype="F32", size=4))
    assert read_shape(tiny).fingerprint not in (before, after_config)


def test_a_tiny_gguf_in_a_directory_is_found(tmp_path):
    (tmp_path / "model.gguf").write_bytes(tiny_gguf())
    (tmp_path / "mmproj-model.gguf").write_bytes(b"a projector is not the model")

    shape = read_shape(tmp_path)

    assert (shape.architecture, shape.hidden_size, shape.attention) == ("llama", 32, full(1, 2, 8))


def test_two_gguf_files_in_a_directory_are_refused_by_name(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(tiny_gguf())

    with pytest.raises(UnsupportedCheckpoint, match=r"2 GGUF files \(a\.gguf, b\.gguf\); name the one"):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "rwkv7"}, r"'rwkv7' is not supported; supported are llama, qwen2, qwen3, gemma3"),
        ({"general.architecture": "llama", "llama.expert_count": 8}, "with experts"),
        ({"general.architecture": "llama", "split.count": 3}, "one of 3 parts"),
    ],
)
def test_a_gguf_that_is_not_served_says_why(tmp_path, metadata, words):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(metadata))

    with pytest.raises(UnsupportedCheckpoint, match=words):
        read_shape(tmp_path)


def test_a_gguf_without_a_needed_key_names_it(tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes({"general.architecture": "qwen3"}))

    with pytest.raises(CorruptCheckpoint, match=r"no 'qwen3\.embedding_length'"):
        read_shape(tmp_path)


def test_a_gguf_without_heads_is_corrupt(tmp_path):
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 32,
        "llama.attention.head_count": 0,
    }
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(metadata))

    with pytest.raises(CorruptCheckpoint, match=r"head_count' is 0"):
        read_shape(tmp_path)


def test_what_cannot_be_read_is_missing_and_named(tiny):
    """A directory stands for what the file system refuses: permissions bind no test that runs as root."""
    (tiny / "model.safetensors").unlink()
    (tiny / "model.safetensors").mkdir()

    with pytest.raises(MissingCheckpoint, match=r"model\.safetensors cannot be read: Is a directory"):
        read_shape(tiny)


def test_paths_without_a_model_say_what_is_there(tmp_path):
    with pytest.raises(MissingCheckpoint, match="does not exist"):
        read_shape(tmp_path / "absent")
    with pytest.raises(MissingCheckpoint, match="found: nothing"):
        read_shape(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(MissingCheckpoint, match=r"found: pytorch_model\.bin"):
        read_shape(tmp_path)
    with pytest.raises(UnsupportedCheckpoint, match=r"neither a \.gguf file"):
        read_shape(tmp_path / "pytorch_model.bin")


def test_weights_without_a_config_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": (1,)}))

    with pytest.raises(MissingCheckpoint, match=r"no config\.json"):
        read_shape(tmp_path)


def test_a_config_file_named_directly_is_its_directory(tiny):
    (tiny / "model.safetensors").unlink()

    assert read_shape(tiny / "config.json") == read_shape(tiny)
    assert json.loads(read_shape(tiny).to_json())["architecture"] == "llama"
