"""A ModelShape survives its JSON, and nonsense is refused with its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes import full_layers, shape_of, window_layers
from tidegate_core.errors import UnsupportedShape
from tidegate_core.shape import (
    MAX_JSON_BYTES,
    AttentionGroup,
    LayerKind,
    ModelShape,
    TpRule,
    WeightGroup,
    WeightRole,
)

counts = st.integers(1, 2**32)
few = st.integers(1, 2**13)
attention_groups = st.one_of(
    st.builds(AttentionGroup, st.sampled_from([LayerKind.FULL, LayerKind.MLA]), few, few, few),
    st.builds(AttentionGroup, st.just(LayerKind.WINDOW), few, few, few, counts),
)
weight_groups = st.builds(
    WeightGroup,
    st.sampled_from(WeightRole),
    st.sampled_from(TpRule),
    st.sampled_from(["bf16", "q4_k"]),
    counts,
    counts,
    st.none() | counts,
)
shapes = st.builds(
    ModelShape,
    architecture=st.text(max_size=40),
    dtype=st.sampled_from(["bf16", "f16", "f32"]),
    attention=st.lists(attention_groups, min_size=1, max_size=4).map(tuple),
    weights=st.lists(weight_groups, min_size=1, max_size=8).map(tuple),
    fingerprint=st.text("0123456789abcdef", min_size=32, max_size=32),
    **dict.fromkeys(
        (
            "num_parameters",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_attention_heads",
            "max_context",
        ),
        counts,
    ),
)


@given(shapes)
def test_a_shape_survives_its_json_within_a_termination_message(shape: ModelShape) -> None:
    text = shape.to_json()
    assert ModelShape.from_json(text) == shape
    assert len(text.encode()) <= MAX_JSON_BYTES


def test_the_json_is_camel_case_and_omits_what_does_not_apply() -> None:
    text = shape_of(full_layers(3, 1, 256), window_layers(15, 1, 256, window=512)).to_json()
    assert '"numKvHeads":1' in text
    assert text.count('"window":') == 1
    assert "_" not in text


def test_keys_of_a_newer_version_are_ignored() -> None:
    shape = shape_of()
    assert ModelShape.from_json(shape.to_json().replace("{", '{"later":1,', 1)) == shape


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSON"),
        ("[]", "not a model shape"),
        ("{}", "architecture"),
        (shape_of().to_json().replace('"numLayers":36', '"numLayers":0'), "num_layers is 0"),
        (shape_of().to_json().replace('"numLayers":36', '"numLayers":"many"'), "numLayers"),
        (shape_of().to_json().replace('"kind":"full"', '"kind":"spiral"'), "kind"),
        (shape_of().to_json().replace('"kind":"full"', '"kind":"window"'), "window None"),
        (shape_of().to_json().replace('"maxContext":40960', '"maxContext":1' + "0" * 30), "max_context is over"),
        (shape_of().to_json().replace('"hiddenSize":4096', '"hiddenSize":1' + "0" * 300), "hidden_size is over"),
        (shape_of().to_json().replace('"headDim":128', '"headDim":4294967296'), "keeps more for a token"),
        (shape_of().to_json().replace('"qwen3"', '"' + "q" * 3000 + '"'), "architecture or dtype is no name"),
    ],
)
def test_json_that_is_no_shape_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(UnsupportedShape, match=word):
        ModelShape.from_json(text)


def test_a_shape_needs_layers_and_weights() -> None:
    with pytest.raises(UnsupportedShape, match="at least one attention and one weight group"):
        ModelShape("x", 1, "bf16", 1, 1, 1, 1, 1, (), (), has_tied_embeddings=True, fingerprint="")


def test_groups_that_were_not_merged_are_refused_rather_than_cut() -> None:
    shape = shape_of(*(full_layers(1, 8, head_dim) for head_dim in range(1, 80)))
    with pytest.raises(UnsupportedShape, match="over 4096"):
        shape.to_json()
