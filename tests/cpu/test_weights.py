import math
import time

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from checkpoint_files import TINY_LLAMA, tiny_gguf, write_config
from real_model import gemma_gguf
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint
from tidegate_checkpoint.shape import read_shape
from tidegate_engine.compute.gguf_weights import PIECE_ELEMENTS
from tidegate_engine.compute.weights import open_weights

TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "llama": {"tie_word_embeddings": False, "rope_theta": 500000.0},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 32},
}
ARCHITECTURES = {"gemma3_text": "gemma3"}


def random_model(family):
    torch.manual_seed(7)
    sizes = TINY | ({"head_dim": 16} if family == "qwen2" else {})  # Qwen2 derives it
    config = AutoConfig.for_model(family, **sizes, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


def tensors_of(model):
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def permuted(weight, num_heads):
    """What llama.cpp's converter does to query and key rows."""
    return weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, family, quantization=None):
    """As llama.cpp's converter writes it, names by its own map."""
    config, architecture = model.config, ARCHITECTURES.get(family, family)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family != "qwen2":
        writer.add_key_length(config.head_dim)
    if family == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, tensor in tensors_of(model).items():
        data = tensor.numpy()
        if family == "llama" and ".q_proj." in name:
            data = permuted(data, config.num_attention_heads)
        if family == "llama" and ".k_proj." in name:
            data = permuted(data, config.num_key_value_heads)
        if family == "gemma3_text" and name.endswith("norm.weight"):
            data = data + 1
        kind = quantization if quantization is not None and data.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = quantize(np.ascontiguousarray(data), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_come_back_as_transformers_saved_them(tmp_path, family):
    model = random_model(family)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    expected = tensors_of(model)

    weights = open_weights(tmp_path)

    assert set(weights.names()) == set(expected)
    assert all(torch.equal(weights.tensor(name), tensor) for name, tensor in expected.items())
    assert weights.tensor("model.norm.weight", torch.bfloat16).dtype == torch.bfloat16
    assert read_shape(tmp_path).num_parameters == model.num_parameters()


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_tensors_come_back_under_hugging_faces_names_and_layout(tmp_path, family):
    model = random_model(family)
    expected = tensors_of(model)

    weights = open_weights(write_gguf(tmp_path / "model.gguf", model, family))

    assert set(weights.names()) == set(expected)
    for name, tensor in expected.items():
        # 1 + w - 1 in float32 is off by a rounding
        torch.testing.assert_close(weights.tensor(name), tensor, rtol=0, atol=3e-7 if "norm" in name else 0)
    assert read_shape(tmp_path).num_parameters == model.num_parameters()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_built_from_the_files_answers_as_the_one_that_was_written(tmp_path, family):
    model = random_model(family)
    weights = open_weights(write_gguf(tmp_path / "model.gguf", model, family))
    config = AutoConfig.for_model(**weights.config)
    rebuilt = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    rebuilt.load_state_dict({name: weights.tensor(name) for name in weights.names()}, strict=False)
    rebuilt.tie_weights()
    token_ids = torch.arange(40).view(1, -1)

    with torch.no_grad():
        expected, got = model(token_ids).logits, rebuilt(token_ids).logits

    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_llama_rows_are_put_back_also_when_they_are_quantised(tmp_path, kind):
    model = random_model("llama")
    weights = open_weights(write_gguf(tmp_path / "model.gguf", model, "llama", kind))
    step = {gguf.GGMLQuantizationType.Q8_0: 0.03, gguf.GGMLQuantizationType.Q4_0: 0.5}[kind]

    for name in ("model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.k_proj.weight"):
        assert (weights.tensor(name) - model.state_dict()[name]).abs().max() < step


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0", "Q2_K", "F16", "BF16"])
def test_decoding_in_pieces_equals_the_librarys_decoding_at_once(tmp_path, kind):
    """Random blocks with finite scales, in a matrix that is no multiple of a piece."""
    storage = gguf.GGMLQuantizationType[kind]
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[storage]
    rows, columns = 3, PIECE_ELEMENTS // 2 + 256
    raw = np.random.default_rng(3).integers(0, 0x7C, (rows, columns // block_elements * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3")
    sizes = {"embedding_length": columns, "feed_forward_length": 8, "block_count": 1, "context_length": 8}
    for key, value in {**sizes, "attention.head_count": 1}.items():
        writer.add_uint32(f"qwen3.{key}", value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    decoded = open_weights(tmp_path).tensor("model.embed_tokens.weight")

    assert torch.equal(decoded, torch.from_numpy(dequantize(raw, storage)))


@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"])
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, None])
def test_some_rows_and_columns_are_those_of_the_whole_matrix(tmp_path, name, kind):
    """What one of several devices reads; blocks of a quantised row need not end where its columns do."""
    weights = open_weights(write_gguf(tmp_path / "model.gguf", random_model("llama"), "llama", kind))
    part = torch.empty(19, 31)
    weights.read_rows(f"model.layers.1.{name}.weight", 3, part, slice(20, 51))
    assert torch.equal(part, weights.tensor(f"model.layers.1.{name}.weight")[3:22, 20:51])


def test_llama3_frequencies_become_rotary_scaling(tmp_path):
    plain = write_gguf(tmp_path / "plain.gguf", random_model("llama"), "llama")
    assert open_weights(plain).config["rope_scaling"] is None
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for key in ("embedding_length", "feed_forward_length", "context_length"):
        writer.add_uint32(f"llama.{key}", 8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(8)
    writer.add_tensor("rope_freqs.weight", np.array([1.0, 1.0, 3.7, 32.0], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    weights = open_weights(tmp_path / "scaled.gguf")

    assert weights.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert weights.names() == ()


def test_a_multimodal_checkpoint_gives_its_language_model(tmp_path):
    write_config(tmp_path, {"model_type": "llava", "text_config": TINY_LLAMA})
    stored = {"language_model.model.norm.weight": torch.ones(32), "vision_tower.norm.weight": torch.ones(4)}
    save_file(stored, tmp_path / "model.safetensors")

    weights = open_weights(tmp_path)

    assert weights.names() == ("model.norm.weight",)
    assert torch.equal(weights.tensor("model.norm.weight"), torch.ones(32))


def test_an_absent_tensor_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(tiny_gguf())
    with pytest.raises(CorruptCheckpoint, match=r"model\.gguf has no tensor 'model\.other'"):
        open_weights(tmp_path).tensor("model.other")


def test_a_config_without_weights_is_refused(tmp_path):
    with pytest.raises(MissingCheckpoint, match="a config but no weights"):
        open_weights(write_config(tmp_path, TINY_LLAMA))


def test_the_real_model_decodes_in_seconds_to_its_published_statistics():
    weights = open_weights(gemma_gguf())
    start = time.process_time()

    tensors = {name: weights.tensor(name, torch.bfloat16) for name in weights.names()}

    assert time.process_time() - start < 10
    assert sum(tensor.numel() for tensor in tensors.values()) == 268_098_176
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert all(math.isfinite(tensor.float().abs().max()) for tensor in tensors.values())
    assert weights.config["layer_types"][5::6] == ["full_attention"] * 3
