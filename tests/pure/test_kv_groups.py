"""How layers share one pool: groups by window, a place for each layer, and the blocks a sequence holds of each one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes import full_layers, shape_of, window_layers
from tidegate_core.kv_demand import KvDemand
from tidegate_core.kv_groups import KvGroups, kv_groups


@pytest.mark.parametrize(
    ("attention", "groups"),
    [
        ([full_layers(28, 8, 128)], KvGroups((None,), 28)),
        ([window_layers(32, 8, 128, 4096)], KvGroups((4096,), 32)),
        ([full_layers(3, 1, 256), window_layers(15, 1, 256, 512)], KvGroups((None, 512, 512, 512, 512, 512), 3)),
        ([full_layers(10, 16, 128), window_layers(52, 16, 128, 1024)], KvGroups((None, *[1024] * 6), 10)),
        ([full_layers(22, 1, 64), window_layers(4, 1, 64, 128)], KvGroups((*[None] * 6, 128), 4)),
    ],
)
def test_groups_are_as_large_as_the_rarer_kind_of_layer(attention, groups):
    assert kv_groups(shape_of(*attention)) == groups


def test_layers_take_their_places_in_order():
    layer_windows = (512, 512, None, 512, 512, None, 512)
    places = KvGroups((None, 512, 512, 512), 2).places(layer_windows)
    assert places == ((1, 0), (1, 1), (0, 0), (2, 0), (2, 1), (0, 1), (3, 0))


layers = st.lists(st.sampled_from([None, None, 16, 512]), min_size=1, max_size=30)


@given(layers)
def test_no_two_layers_share_a_place_and_each_stands_with_its_window(layer_windows):
    counted = [full_layers(layer_windows.count(None), 2, 64)] if None in layer_windows else []
    counted += [window_layers(layer_windows.count(w), 2, 64, w) for w in (16, 512) if w in layer_windows]
    groups = kv_groups(shape_of(*counted))
    places = groups.places(layer_windows)
    assert len(set(places)) == len(layer_windows)
    for window, (group, index) in zip(layer_windows, places, strict=True):
        assert groups.windows[group] == window
        assert index < groups.layers_per_group


def seen_blocks(window: int, start: int, end: int, block_size: int) -> int:
    """Blocks that tokens start .. end - 1 see."""
    return len({position // block_size for position in range(max(0, start - window + 1), end)})


@given(st.integers(1, 60), st.integers(1, 50), st.sampled_from([1, 4, 16]))
def test_the_caps_are_what_a_window_covers_at_most(window, chunk, block_size):
    """Blocks are freed where a block begins, so a token later in it still holds what the first one saw."""
    (cap,) = KvDemand((window,), block_size, chunk).caps
    starts = range(3 * (window + block_size))
    decoding = [seen_blocks(window, start - start % block_size, start + 1, block_size) for start in starts]
    prefilling = [seen_blocks(window, start, start + chunk, block_size) for start in starts]
    assert (cap.decoding, cap.prefilling) == (max(decoding), max(prefilling))


@given(st.lists(st.none() | st.integers(1, 300), min_size=1, max_size=4), st.integers(0, 400), st.integers(0, 5000))
def test_the_longest_sequence_fits_and_a_longer_one_does_not(windows, num_blocks, limit):
    kv = KvDemand(tuple(windows), 16, max_chunk=64)
    longest = kv.longest_sequence(num_blocks, limit)
    assert kv.prefilling_blocks(longest) <= num_blocks
    assert longest == limit or kv.prefilling_blocks(longest + 1) > num_blocks
    assert kv.decoding_blocks(longest) <= kv.prefilling_blocks(longest)
