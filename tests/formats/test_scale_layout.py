"""The blocked layout against a loop over its formula, against torchao, and its own inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from nibblas.formats import scale_layout as sl

RULES = ("torch", "flashinfer")
SHAPES = [(1, 1), (3, 5), (127, 4), (128, 4), (129, 3), (200, 9), (257, 8), (384, 13)]
FILL = 0x7F


def counting_bytes(*shape: int) -> torch.Tensor:
    """Bytes that tell neighbours apart: none equals FILL."""
    return (torch.arange(int(torch.Size(shape).numel())) * 31 % 127).to(torch.uint8).view(shape)


def blocked_by_loop(scales: torch.Tensor, fill: int) -> torch.Tensor:
    """The layout written out byte by byte: atoms of 128 x 4, 16-byte lines of four quarters."""
    rows, k_blocks = scales.shape
    row_atoms, k_atoms = -(-rows // 128), -(-k_blocks // 4)
    flat = [fill] * (row_atoms * k_atoms * 512)
    position = 0
    for row_atom in range(row_atoms):
        for k_atom in range(k_atoms):
            for line in range(32):
                for quarter in range(4):
                    for j in range(4):
                        row, kb = row_atom * 128 + quarter * 32 + line, k_atom * 4 + j
                        if row < rows and kb < k_blocks:
                            flat[position] = int(scales[row, kb])
                        position += 1
    return torch.tensor(flat, dtype=torch.uint8).view(row_atoms * 128, k_atoms * 4)


def by_group_with_a_loop(scales, ends, starts, fill):
    """Every group blocked on its own, then laid at its start row."""
    k_blocks = scales.shape[1]
    bound = sl.packed_rows_bound(scales.shape[0], len(ends))
    packed = torch.full((bound, sl.padded_k_blocks(k_blocks)), fill, dtype=torch.uint8)
    begin = 0
    for end, start in zip(ends, starts, strict=True):
        atoms = sl.to_blocked(scales[begin:end], fill)
        packed[start : start + atoms.shape[0]] = atoms
        begin = end
    return packed


def start_rows_with_a_loop(sizes, rule):
    starts, row, begin = [], 0, 0
    for g, size in enumerate(sizes):
        starts.append(row if rule == "torch" else (begin + 127 * g) // 128 * 128)
        row += -(-size // 128) * 128
        begin += size
    return starts


@pytest.mark.parametrize("shape", SHAPES)
def test_to_blocked_is_the_layout_written_out(shape):
    scales = counting_bytes(*shape)
    assert torch.equal(sl.to_blocked(scales, FILL), blocked_by_loop(scales, FILL))


@pytest.mark.parametrize("shape", SHAPES)
def test_blocked_offset_finds_every_scale_at_its_own_byte(shape):
    scales = counting_bytes(*shape)
    row, kb = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    offsets = sl.blocked_offset(row, kb, shape[1])
    blocked = sl.to_blocked(scales).flatten()
    assert torch.equal(blocked[offsets], scales)
    assert offsets.unique().numel() == scales.numel()
    assert int(offsets.max()) < blocked.numel()


def test_blocked_offset_of_integers_by_hand():
    assert sl.blocked_offset(0, 0, 4) == 0
    assert sl.blocked_offset(1, 0, 4) == 16
    assert sl.blocked_offset(32, 3, 4) == 4 + 3
    assert sl.blocked_offset(127, 3, 4) == 511
    assert sl.blocked_offset(0, 4, 5) == 512
    assert sl.blocked_offset(128, 0, 5) == 1024
    assert sl.blocked_offset(300, 9, 13) == (2 * 4 + 2) * 512 + 12 * 16 + 1 * 4 + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_to_blocked_agrees_with_torchao(shape):
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils", reason="torchao")
    scales = counting_bytes(*shape)
    assert torch.equal(sl.to_blocked(scales).flatten(), utils.to_blocked(scales))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("stack", [(), (3,), (2, 2)])
def test_from_blocked_inverts_to_blocked_and_keeps_the_type(dtype, stack):
    for rows, k_blocks in SHAPES:
        scales = counting_bytes(*stack, rows, k_blocks).view(dtype)
        blocked = sl.to_blocked(scales, FILL)
        assert blocked.dtype == dtype
        assert blocked.shape == (*stack, sl.padded_rows(rows), sl.padded_k_blocks(k_blocks))
        back = sl.from_blocked(blocked, rows, k_blocks)
        assert torch.equal(back.view(torch.uint8), scales.view(torch.uint8))


def test_a_stack_is_blocked_matrix_by_matrix():
    scales = counting_bytes(3, 130, 5)
    blocked = sl.to_blocked(scales, FILL)
    for g in range(3):
        assert torch.equal(blocked[g], sl.to_blocked(scales[g], FILL))


def test_every_padding_byte_holds_the_fill_byte():
    blocked = sl.to_blocked(torch.zeros(129, 5, dtype=torch.uint8), FILL)
    assert int((blocked == FILL).sum()) == 256 * 8 - 129 * 5


def test_strided_scales_are_read_where_they_lie():
    scales = counting_bytes(140, 12)[::2, 1:10:2]
    assert torch.equal(sl.to_blocked(scales), sl.to_blocked(scales.contiguous()))


def test_no_rows_make_an_empty_buffer():
    blocked = sl.to_blocked(torch.empty(0, 5, dtype=torch.uint8))
    assert blocked.shape == (0, 8)
    assert sl.from_blocked(blocked, 0, 5).shape == (0, 5)


group_sizes = st.lists(
    st.sampled_from([0, 0, 1, 2, 127, 128, 129, 200, 256]), min_size=1, max_size=7
)


@settings(max_examples=60, deadline=None)
@given(group_sizes, st.sampled_from(RULES))
def test_group_starts_follow_the_rule_and_never_overlap(sizes, rule):
    offs = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    starts = sl.group_start_rows(offs, rule)
    assert starts.dtype == torch.int64
    assert starts.tolist() == start_rows_with_a_loop(sizes, rule)
    ends = [s + -(-size // 128) * 128 for s, size in zip(starts.tolist(), sizes, strict=True)]
    bound = sl.packed_rows_bound(sum(sizes), len(sizes))
    assert all(start % 128 == 0 for start in starts.tolist())
    assert all(end <= start for end, start in zip(ends, [*starts.tolist()[1:], bound], strict=True))


@settings(max_examples=40, deadline=None)
@given(group_sizes, st.integers(0, 130), st.sampled_from([1, 3, 4, 6]), st.sampled_from(RULES))
def test_packed_groups_lie_where_blocking_each_alone_puts_them(sizes, spare, k_blocks, rule):
    offs = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    scales = counting_bytes(sum(sizes) + spare, k_blocks)
    packed = sl.to_blocked_by_group(scales, offs, rule=rule, fill_byte=FILL)
    starts = start_rows_with_a_loop(sizes, rule)
    assert torch.equal(packed, by_group_with_a_loop(scales, offs.tolist(), starts, FILL))

    back = sl.from_blocked_by_group(
        packed, offs, rule=rule, rows=scales.shape[0], k_blocks=k_blocks
    )
    expected = scales.clone()
    expected[sum(sizes) :] = 0
    assert torch.equal(back, expected)


def test_the_two_rules_differ_where_a_group_ends_off_128():
    offs = torch.tensor([1, 1, 2], dtype=torch.int32)
    assert sl.group_start_rows(offs, "torch").tolist() == [0, 128, 128]
    assert sl.group_start_rows(offs, "flashinfer").tolist() == [0, 128, 128]
    offs = torch.tensor([0, 0, 0, 1], dtype=torch.int32)
    assert sl.group_start_rows(offs, "torch").tolist() == [0, 0, 0, 0]
    assert sl.group_start_rows(offs, "flashinfer").tolist() == [0, 0, 128, 256]


def test_packed_scales_of_an_exactly_sized_buffer_are_read():
    """PyTorch allocates the sum of padded groups, which may be less than the bound."""
    offs = torch.tensor([100, 228, 300], dtype=torch.int32)
    scales = counting_bytes(300, 5).view(torch.float8_e4m3fn)
    exact = sl.to_blocked_by_group(scales, offs, rule="torch")[: 128 * 3]
    assert exact.shape[0] < sl.packed_rows_bound(300, 3)
    back = sl.from_blocked_by_group(exact, offs, rule="torch", rows=300, k_blocks=5)
    assert torch.equal(back.view(torch.uint8), scales.view(torch.uint8))


@pytest.mark.parametrize("rule", RULES)
def test_all_groups_empty_leaves_only_filler(rule):
    offs = torch.zeros(4, dtype=torch.int32)
    packed = sl.to_blocked_by_group(counting_bytes(5, 3), offs, rule=rule, fill_byte=FILL)
    assert packed.shape == (sl.packed_rows_bound(5, 4), 4)
    assert bool((packed == FILL).all())
    none = sl.to_blocked_by_group(torch.empty(0, 3, dtype=torch.uint8), offs, rule=rule)
    assert none.shape == (sl.packed_rows_bound(0, 4), 4)
    back = sl.from_blocked_by_group(none[:0], offs, rule=rule, rows=2, k_blocks=3)
    assert torch.equal(back, torch.zeros(2, 3, dtype=torch.uint8))


@pytest.mark.parametrize("rule", RULES)
def test_offsets_out_of_order_stay_inside_the_buffers(rule):
    offs = torch.tensor([900, -7, 2**30, 3], dtype=torch.int32)
    packed = sl.to_blocked_by_group(counting_bytes(40, 3), offs, rule=rule)
    sl.from_blocked_by_group(packed, offs, rule=rule, rows=40, k_blocks=3)
    beyond = torch.tensor([200], dtype=torch.int32)
    sl.from_blocked_by_group(packed[:128], beyond, rule=rule, rows=200, k_blocks=3)


def test_packing_by_group_needs_no_value_of_the_offsets():
    """Under fake tensors any read of a value raises, which a host synchronisation would be."""
    with FakeTensorMode():
        offs = torch.empty(4, dtype=torch.int32)
        scales = torch.empty(300, 5, dtype=torch.float8_e4m3fn)
        packed = sl.to_blocked_by_group(scales, offs, rule="flashinfer")
        back = sl.from_blocked_by_group(packed, offs, rule="torch", rows=300, k_blocks=5)
    assert (packed.shape, packed.dtype) == ((768, 8), torch.float8_e4m3fn)
    assert (back.shape, back.dtype) == ((300, 5), torch.float8_e4m3fn)


@pytest.mark.parametrize(("count", "rm", "rk"), [(1, 1, 1), (1, 2, 3), (2, 3, 1), (3, 1, 4)])
def test_competition_view_has_the_problem_statements_shape_and_strides(count, rm, rk):
    blocked = counting_bytes(count, rm * 128, rk * 4)
    view = sl.competition_view(blocked)
    assert view.shape == (32, 4, rm, 4, rk, count)
    assert view.stride() == (16, 4, rk * 512, 1, 512, rm * rk * 512)
    assert view.data_ptr() == blocked.data_ptr()
    back = sl.from_competition_view(view)
    assert back.data_ptr() == blocked.data_ptr()
    assert torch.equal(back, blocked)


def test_competition_view_indexes_by_quarter_line_and_atom():
    scales = counting_bytes(2, 300, 9)
    view = sl.competition_view(sl.to_blocked(scales))
    for row, kb, matrix in [(0, 0, 0), (33, 5, 1), (127, 3, 0), (299, 8, 1), (200, 7, 0)]:
        element = view[row % 32, row % 128 // 32, row // 128, kb % 4, kb // 4, matrix]
        assert element == scales[matrix, row, kb]


def test_competition_view_of_one_matrix_is_two_dimensional_input():
    blocked = counting_bytes(128, 8).view(torch.float8_e4m3fn)
    assert sl.competition_view(blocked).shape == (32, 4, 1, 4, 2, 1)
    assert sl.from_competition_view(sl.competition_view(blocked)).dtype == torch.float8_e4m3fn


def test_competition_view_with_matrices_far_apart_needs_no_copy():
    spaced = counting_bytes(4, 256, 8)[::2]
    view = spaced.view(2, 2, 2, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)
    back = sl.from_competition_view(view)
    assert back.data_ptr() == spaced.data_ptr()
    assert torch.equal(back, spaced)


def test_a_view_with_other_strides_is_refused_not_copied():
    view = sl.competition_view(counting_bytes(1, 256, 8)).contiguous()
    with pytest.raises(ValueError, match="view6: got strides"):
        sl.from_competition_view(view)


def test_wrong_arguments_are_refused_by_name():
    scales = counting_bytes(4, 4)
    with pytest.raises(TypeError, match=r"scales: got torch\.float32"):
        sl.to_blocked(torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"scales: .*2 or more dimensions"):
        sl.to_blocked(scales[0])
    with pytest.raises(ValueError, match=r"blocked: .*\(\.\.\., 256, 4\)"):
        sl.from_blocked(sl.to_blocked(scales), 129, 4)
    with pytest.raises(ValueError, match=r"view6: .*32, 4, rm"):
        sl.from_competition_view(scales)
    with pytest.raises(ValueError, match=r"blocked: .*padded_rows"):
        sl.competition_view(scales)
    with pytest.raises(ValueError, match="blocked: got strides"):
        sl.competition_view(counting_bytes(128, 16)[:, ::2])


def test_wrong_offsets_are_refused_by_name():
    scales = counting_bytes(4, 4)
    ends = torch.tensor([4], dtype=torch.int32)
    with pytest.raises(ValueError, match="rule: got 'cutlass'"):
        sl.to_blocked_by_group(scales, ends, rule="cutlass")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="offs: got list"):
        sl.group_start_rows([4], "torch")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"offs: got torch\.float32"):
        sl.group_start_rows(ends.float(), "torch")
    with pytest.raises(ValueError, match=r"offs: .*want \(G,\) with G >= 1"):
        sl.group_start_rows(ends[:0], "torch")
