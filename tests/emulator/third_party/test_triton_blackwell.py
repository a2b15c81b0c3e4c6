"""PTX as Triton emits it for Blackwell: tcgen05 products, NVFP4 ones too, and mma.sync of sm_120.

The texts in triton/ were made by triton_kernels.py and gluon_kernels.py of
lab/emulator/third_party with Triton 3.9.0.
Triton leaves the fences of tcgen05 out, so they run with the rules of hardware.
"""

from __future__ import annotations

from typing import Any

import pytest

from nibblas.emulator import DataRace, Device
from nibblas.emulator.machine.tensor_order import Rules
from tests.emulator.conftest import every_order
from tests.emulator.third_party.problems import HalfProduct, ScaledProduct, blocked
from tests.emulator.third_party.triton_launch import launch

TILES = {"matmul": (64, 64), "matmul_tails": (64, 64), "matmul_tma": (64, 64)}
"""Of a CTA; the others: 128 x 128."""


def device(order: str = "round_robin", rules: Rules = "hardware", **options: Any) -> Device:
    return Device("sm_100", order=order, seed=3, rules=rules, **options)


def check_halves(dev: Device, name: str, m: int, n: int, k: int, ctas: int = 0) -> None:
    problem = HalfProduct.random(m, n, k)
    by_rows = name in ("matmul", "matmul_tails")
    b = problem.b.T.copy() if by_rows else problem.b
    c = dev.empty((m, n), "float16", name="c")
    tile_m, tile_n = TILES.get(name, (128, 128))
    grid = ctas or (-(-m // tile_m), -(-n // tile_n), 1)
    launch(dev, name, grid, dev.from_numpy(problem.a), dev.from_numpy(b), c, m, n, k)
    assert c.written().all()
    assert (c.to_numpy() == problem.expected()).all()


def check_scaled(dev: Device, name: str, m: int, n: int, k: int, ctas: int = 0) -> None:
    problem = ScaledProduct.random(m, n, k)
    operands = problem.a, problem.b
    scales = [x.scales if name == "nvfp4" else blocked(x.scales) for x in operands]
    arguments = [dev.from_numpy(data) for data in (*(x.packed for x in operands), *scales)]
    c = dev.empty((m, n), "float16", name="c")
    tile_m = 256 if name == "nvfp4_pair" else 128
    launch(dev, name, ctas or (m // tile_m, n // 128, 1), *arguments, c, m, n, k)
    assert c.written().all()
    assert (c.to_numpy() == problem.expected()).all()


@every_order
def test_products_of_64_rows(order: str) -> None:
    check_halves(device(order), "matmul", 128, 64, 96)


@every_order
def test_tails(order: str) -> None:
    check_halves(device(order), "matmul_tails", 70, 33, 50)


@every_order
def test_tensor_copies(order: str) -> None:
    check_halves(device(order), "matmul_tma", 64, 64, 96)


@every_order
def test_products_of_128_rows(order: str) -> None:
    check_halves(device(order), "matmul_large", 128, 128, 256)


@every_order
def test_persistent_kernel_of_specialised_warps(order: str) -> None:
    check_halves(device(order), "matmul_warps", 256, 128, 128, ctas=1)


@every_order
def test_nvfp4_with_scales_stored_by_the_warps(order: str) -> None:
    check_scaled(device(order), "nvfp4", 128, 128, 256)


@every_order
def test_nvfp4_with_scales_copied_from_shared_memory(order: str) -> None:
    check_scaled(device(order), "nvfp4_tma", 128, 128, 512, ctas=1)


@every_order
def test_nvfp4_with_specialised_warps(order: str) -> None:
    check_scaled(device(order), "nvfp4_warps", 256, 128, 512, ctas=1)


@every_order
def test_nvfp4_of_256_columns(order: str) -> None:
    check_scaled(device(order), "nvfp4_wide", 128, 256, 512, ctas=1)


@every_order
def test_nvfp4_on_pairs_of_ctas(order: str) -> None:
    check_scaled(device(order), "nvfp4_pair", 512, 128, 768)


@pytest.mark.parametrize("ctas", [2, 3])
def test_several_persistent_ctas(ctas: int) -> None:
    check_scaled(device(num_sms=4), "nvfp4_warps", 256, 256, 256, ctas=ctas)


@pytest.mark.parametrize("name", ["matmul_large", "matmul_warps"])
def test_missing_fences_are_reported_with_the_rules_of_the_text(name: str) -> None:
    with pytest.raises(DataRace, match="no tcgen05.fence::before_thread_sync"):
        check_halves(device(rules="ptx"), name, 128, 128, 128, ctas=1)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_tma", "nvfp4_warps"])
def test_missing_fences_of_nvfp4_kernels_too(name: str) -> None:
    with pytest.raises(DataRace, match="no tcgen05.fence::before_thread_sync"):
        check_scaled(device(rules="ptx"), name, 128, 128, 256, ctas=1)


def test_missing_fence_between_a_product_and_its_loads() -> None:
    with pytest.raises(DataRace, match="tcgen05.ld .* no tcgen05.fence::after_thread_sync"):
        check_scaled(device(rules="ptx"), "nvfp4_pair", 256, 128, 256)


@every_order
def test_nvfp4_by_warps_of_sm_120(order: str) -> None:
    check_scaled(Device("sm_120", order=order, seed=3), "nvfp4", 128, 128, 256)


@every_order
def test_nvfp4_by_warps_of_sm_120_with_tensor_copies(order: str) -> None:
    check_scaled(Device("sm_120", order=order, seed=3), "nvfp4_small", 128, 128, 256, ctas=1)
