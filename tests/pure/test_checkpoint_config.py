import json

import pytest

from checkpoint_files import TINY_LLAMA, write_config
from tidegate_checkpoint.config import parse_config
from tidegate_checkpoint.config_json import complete, read_config
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint

GEMMA_27B = {  # as published: what equals the class's default is left out, the text model lies inside
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def windows(raw):
    return parse_config(complete(raw, "config.json"), "config.json").windows


def test_the_text_model_is_found_inside_a_multimodal_config_with_its_class_defaults():
    config = complete(GEMMA_27B, "config.json")

    assert config["model_type"] == "gemma3_text"
    assert config["vocab_size"] == 262208
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == [1, 106]
    assert config["rope_theta"] == 1_000_000.0
    assert config["rope_local_base_freq"] == 10_000.0
    assert config["rope_scaling"] == {"factor": 8.0, "rope_type": "linear"}


def test_five_of_six_gemma_layers_slide():
    assert windows(GEMMA_27B)[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    assert windows(GEMMA_27B).count(None) == 10


def test_mistral_slides_everywhere_or_nowhere():
    mistral = TINY_LLAMA | {"model_type": "mistral"}

    assert windows(mistral | {"sliding_window": 64}) == (64, 64)
    assert windows(mistral | {"sliding_window": None}) == (None, None)


def test_qwen_slides_only_where_it_says_so():
    qwen = TINY_LLAMA | {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 1}

    assert windows(qwen) == (None, None)
    assert windows(qwen | {"use_sliding_window": True}) == (None, 64)


def test_layer_types_go_before_any_rule():
    qwen = TINY_LLAMA | {"model_type": "qwen3", "sliding_window": 64, "head_dim": 8}

    assert windows(qwen | {"layer_types": ["sliding_attention", "full_attention"]}) == (64, None)


def test_both_spellings_of_rotary_settings_mean_the_same():
    scaling = {"rope_type": "llama3", "factor": 8.0}
    older = complete(TINY_LLAMA | {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "factor": 8.0}}, "old")
    newer = complete(TINY_LLAMA | {"rope_parameters": {"rope_theta": 500000.0, **scaling}}, "new")

    for config in (older, newer):
        assert config["rope_theta"] == 500000.0
        assert config["rope_scaling"] == scaling
    plain = complete(TINY_LLAMA | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "plain")
    assert plain["rope_scaling"] is None


def test_gemma_rotary_settings_per_layer_kind_are_split():
    parameters = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    config = complete(GEMMA_27B["text_config"] | {"rope_scaling": None, "rope_parameters": parameters}, "config.json")

    assert (config["rope_theta"], config["rope_local_base_freq"]) == (5e5, 2e4)


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedCheckpoint, match=r"'mamba' is not supported; served: llama, .*, gemma3_text$"):
        complete({"model_type": "mamba"}, "config.json")


def test_an_unknown_text_model_in_a_multimodal_config_is_named():
    with pytest.raises(UnsupportedCheckpoint, match=r"'some_vl \(rwkv\)'"):
        complete({"model_type": "some_vl", "text_config": {"model_type": "rwkv"}}, "config.json")


def test_quantised_weights_are_refused_by_their_method():
    with pytest.raises(UnsupportedCheckpoint, match="quantised by 'gptq'"):
        complete(TINY_LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "config.json")


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, 0, "many", -3])
def test_a_missing_or_impossible_size_is_named(key, value):
    with pytest.raises(CorruptCheckpoint, match=key):
        parse_config(complete(TINY_LLAMA | {key: value}, "config.json"), "config.json")


def test_a_size_that_is_not_there_is_called_missing():
    with pytest.raises(CorruptCheckpoint, match="num_hidden_layers is missing"):
        complete({key: value for key, value in TINY_LLAMA.items() if key != "num_hidden_layers"}, "config.json")
    with pytest.raises(CorruptCheckpoint, match="intermediate_size is missing"):
        parse_config(complete(TINY_LLAMA | {"intermediate_size": None}, "config.json"), "config.json")


def test_no_number_of_layers_fills_the_memory():
    with pytest.raises(CorruptCheckpoint, match="num_hidden_layers is 4294967295"):
        complete(TINY_LLAMA | {"num_hidden_layers": 2**32 - 1}, "config.json")


def test_heads_that_cannot_be_shared_are_told_before_anything_is_loaded():
    with pytest.raises(CorruptCheckpoint, match="4 attention heads cannot share 3 key-value heads"):
        parse_config(complete(TINY_LLAMA | {"num_key_value_heads": 3}, "config.json"), "config.json")


def test_a_layer_pattern_of_zero_is_named():
    with pytest.raises(CorruptCheckpoint, match="sliding_window_pattern is 0"):
        complete(TINY_LLAMA | {"model_type": "gemma3_text", "sliding_window_pattern": 0}, "config.json")


def test_an_unserved_dtype_is_named():
    with pytest.raises(UnsupportedCheckpoint, match="float8_e4m3fn"):
        parse_config(complete(TINY_LLAMA | {"torch_dtype": "float8_e4m3fn"}, "config.json"), "config.json")


def test_a_file_that_is_no_json_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptCheckpoint, match="not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CorruptCheckpoint, match="JSON list"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CorruptCheckpoint, match="not valid JSON"):
        read_config(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingCheckpoint, match=r"config\.json does not exist"):
        read_config(tmp_path)


def test_a_completed_config_is_plain_json_and_stays_as_it_is(tmp_path):
    once = read_config(write_config(tmp_path, GEMMA_27B))

    assert complete(json.loads(json.dumps(once)), "again") == once
