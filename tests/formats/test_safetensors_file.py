"""The container: what is refused, what the package reads, what a failed write leaves."""

from __future__ import annotations

import errno
import json
import random

import pytest
import torch

from nibblas.formats import safetensors_file
from nibblas.formats.safetensors_file import (
    DTYPE_BITS,
    TORCH_DTYPES,
    SafetensorsReader,
    SafetensorsWriter,
    TensorInfo,
)

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_of(path, header: bytes | dict, data: bytes = b"", length: int | None = None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def infos(*tensors: TensorInfo) -> dict[str, TensorInfo]:
    return {info.name: info for info in tensors}


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (b"{", "Expecting property name"),
        (b"[1, 2]", "no JSON object"),
        (b"\xff\xfe{}", "can't decode"),
        (b"[" * 100_000, "recursion"),
        (b'{"a":' + json.dumps(F32).encode() + b',"a":' + json.dumps(F32).encode() + b"}", "twice"),
        ({"a": {**F32, "dtype": "F3"}}, "unknown dtype 'F3'"),
        ({"a": {**F32, "dtype": ["F32"]}}, "unknown dtype"),
        ({"a": {**F32, "shape": [-2]}}, "no shape"),
        ({"a": {**F32, "shape": [True, 2]}}, "no shape"),
        ({"a": {**F32, "shape": [2.0]}}, "no shape"),
        ({"a": {**F32, "shape": [2**63]}}, "no shape"),
        ({"a": {**F32, "shape": [1] * 65}}, "no shape"),
        ({"a": {**F32, "shape": [2**62, 2**62]}}, "does not take the bytes"),
        ({"a": {**F32, "data_offsets": [0, 4]}}, "does not take the bytes 0..4"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, "does not take the bytes"),
        ({"a": {**F32, "data_offsets": [0, 8, 16]}}, "no pair of data_offsets"),
        ({"a": {**F32, "data_offsets": [4, 12]}}, "follows a gap"),
        ({"a": {**F32, "data_offsets": [2**60, 2**60 + 8]}}, "follows a gap"),
        ({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, "overlaps"),
        ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, "does not take the bytes"),
        ({"a": 5}, "is not dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "is not dtype, shape and data_offsets"),
        ({"\x1b[2J": F32}, "cannot be printed"),
        (b'{"\\ud800":' + json.dumps(F32).encode() + b"}", "cannot be printed"),
        ({"a": F32, "__metadata__": {"x": 1}}, "does not map text to text"),
        ({"a": F32, "__metadata__": []}, "does not map text to text"),
        ({}, "take 0 bytes, and 8 are there"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path, header, what):
    path = file_of(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(ValueError, match=r"want a whole \.safetensors file") as raised:
        SafetensorsReader(path)
    assert what in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("length", [0, 3, 10_000, 2**40, 2**64 - 1])
def test_a_header_of_the_wrong_length_is_refused_before_it_is_read(tmp_path, length):
    path = file_of(tmp_path / "x.safetensors", {"a": F32}, bytes(8), length=length)
    with pytest.raises(ValueError, match="path: got"):
        SafetensorsReader(path)


def test_a_header_above_the_limit_is_refused(tmp_path, monkeypatch):
    path = file_of(tmp_path / "x.safetensors", {"a": F32}, bytes(8))
    monkeypatch.setattr(safetensors_file, "_LARGEST_HEADER", 20)
    with pytest.raises(ValueError, match="at most 20"):
        SafetensorsReader(path)
    with pytest.raises(ValueError, match="at most 20"):
        SafetensorsWriter(tmp_path / "y.safetensors", [TensorInfo("a", "F32", (2,))], {})
    assert not (tmp_path / "y.safetensors").exists()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = file_of(tmp_path / "x.safetensors", {"a": F32}, bytes(8)).read_bytes()
    SafetensorsReader(tmp_path / "x.safetensors")
    for size in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="path: got"):
            SafetensorsReader(tmp_path / "cut.safetensors")


def test_whatever_bytes_change_the_file_is_refused_or_read_within_its_bounds(tmp_path):
    header = {"a": F32, "b": {"dtype": "U8", "shape": [3, 2], "data_offsets": [8, 14]}}
    whole = file_of(tmp_path / "x", header, bytes(14)).read_bytes()
    draw = random.Random(0)
    errors = []
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 5))):
            changed[draw.randrange(len(changed) - 14)] = draw.randrange(256)
        (tmp_path / "y").write_bytes(changed)
        try:
            with SafetensorsReader(tmp_path / "y") as reader:
                for name, info in reader.items():
                    assert reader.read_bytes(name, 0, info.num_bytes).numel() == info.num_bytes
        except ValueError as error:
            errors.append(str(error))
    assert 1000 < len(errors) < 1500
    assert all(error.startswith("path: got") for error in errors)


def test_a_file_cut_after_it_was_opened_is_noticed(tmp_path):
    big = {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}
    path = file_of(tmp_path / "x.safetensors", {"a": big}, bytes(1 << 20))
    with SafetensorsReader(path) as reader:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
        with pytest.raises(ValueError, match="ends inside 'a'"):
            reader.read("a")


def test_what_the_package_writes_is_read(tmp_path):
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors").save_file
    tensors = {
        "u8": torch.arange(6, dtype=torch.uint8).view(2, 3),
        "e4m3": torch.randn(4, 2).to(torch.float8_e4m3fn),
        "f16": torch.randn(3).half(),
        "bf16": torch.randn(2, 2, 2).bfloat16(),
        "f32": torch.tensor(1.5),
        "f64": torch.randn(0, 4).double(),
    }
    save_file({**tensors, "i64": torch.arange(3)}, tmp_path / "x.safetensors", {"who": "me"})
    with SafetensorsReader(tmp_path / "x.safetensors") as reader:
        assert reader.metadata == {"who": "me"}
        for name, tensor in tensors.items():
            read = reader.read(name)
            assert read.shape == tensor.shape and read.dtype == tensor.dtype
            assert read.flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))
        assert reader.read_rows("u8", 1, 2).tolist() == [[3, 4, 5]]
        assert reader["i64"].num_bytes == 24


def test_what_is_written_the_package_reads(tmp_path):
    load_file = pytest.importorskip("safetensors.torch", reason="safetensors").load_file
    a, b = torch.randn(4, 3), torch.randn(5).bfloat16()
    described = infos(TensorInfo("bytes", "U8", (3,)), TensorInfo("ä.b", "BF16", (5,)))
    described |= infos(TensorInfo("a", "F32", (4, 3)), TensorInfo("none", "F16", (0, 7)))
    with SafetensorsWriter(tmp_path / "x", described.values(), {"k": "v"}) as writer:
        writer.write("a", 24, a[2:])
        writer.write("ä.b", 0, b)
        writer.write("a", 0, a[:2])
        writer.write("bytes", 0, torch.tensor([1, 2, 3], dtype=torch.uint8))
        assert not (tmp_path / "x").exists()
        writer.commit()
    read = load_file(tmp_path / "x")
    assert torch.equal(read["a"], a) and torch.equal(read["ä.b"], b)
    assert read["bytes"].tolist() == [1, 2, 3] and read["none"].shape == (0, 7)
    with SafetensorsReader(tmp_path / "x") as reader:
        assert reader.metadata == {"k": "v"}
        for info in reader.values():
            assert info.begin % (DTYPE_BITS[info.dtype] // 8) == 0


def test_every_type_looked_at_has_its_size():
    for name, dtype in TORCH_DTYPES.items():
        assert DTYPE_BITS[name] == 8 * dtype.itemsize


def writer_of(tmp_path, **options):
    return SafetensorsWriter(tmp_path / "x", [TensorInfo("a", "F32", (2,))], {}, **options)


def test_an_unfinished_file_is_not_committed(tmp_path):
    with writer_of(tmp_path) as writer:
        writer.write("a", 0, torch.ones(1))
        with pytest.raises(RuntimeError, match="'a' has not been written as a whole"):
            writer.commit()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_ends_the_block_removes_the_file(tmp_path, error):
    with pytest.raises(error), writer_of(tmp_path) as writer:  # noqa: PT012
        writer.write("a", 0, torch.ones(2))
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_stays_until_the_new_one_is_whole(tmp_path):
    (tmp_path / "x").write_text("before")
    with pytest.raises(FileExistsError):
        writer_of(tmp_path)
    with pytest.raises(KeyboardInterrupt), writer_of(tmp_path, replace=True) as writer:
        raise KeyboardInterrupt
    assert (tmp_path / "x").read_text() == "before"
    with writer_of(tmp_path, replace=True) as writer:
        writer.write("a", 0, torch.ones(2))
        writer.commit()
    with SafetensorsReader(tmp_path / "x") as reader:
        assert reader.read("a").tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_made_meanwhile_is_not_replaced(tmp_path):
    with writer_of(tmp_path) as writer:
        writer.write("a", 0, torch.ones(2))
        (tmp_path / "x").write_text("theirs")
        with pytest.raises(FileExistsError):
            writer.commit()
    assert (tmp_path / "x").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1


class FullDisk:
    """A file that takes ``room`` bytes and then none."""

    def __init__(self, file, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data) -> None:
        self._room -= memoryview(data).nbytes
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.write(data)

    def __getattr__(self, name: str):
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch, room):
    create = safetensors_file._create
    monkeypatch.setattr(safetensors_file, "_create", lambda path: FullDisk(create(path), room))
    with pytest.raises(OSError, match="No space left") as raised, writer_of(tmp_path) as writer:
        writer.write("a", 0, torch.ones(100))  # after a header of 72 bytes
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_two_tensors_of_one_name_are_refused(tmp_path):
    pair = [TensorInfo("a", "F32", (2,)), TensorInfo("a", "U8", (2,))]
    with pytest.raises(ValueError, match="'a' once more"):
        SafetensorsWriter(tmp_path / "x", pair, {})
    with pytest.raises(ValueError, match="__metadata__"):
        SafetensorsWriter(tmp_path / "x", [TensorInfo("__metadata__", "U8", (2,))], {})
    assert list(tmp_path.iterdir()) == []
