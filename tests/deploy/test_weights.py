"""Weights in a file of their own: those of another training ship alone."""

import copy
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.cli.deploy_cmds import inspected
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.signature import RECORD_BYTES, sign, write_keys
from smelt.ir.artifact_file.write import write
from smelt.quantization.safetensors import read_safetensors

X = torch.linspace(-1, 1, 24).view(3, 8)


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()


Saved = dict[int, tuple[Path, Path]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Two trainings of a model: the artifact and the weights of each."""
    folder = tmp_path_factory.mktemp("weights")
    files = {}
    for seed in (0, 1):
        path, weights = folder / f"{seed}.smelt", folder / f"{seed}.safetensors"
        smelt.export(model_of(seed), (X,)).save(path, weights=weights)
        files[seed] = path, weights
    return files


def close(found: Any, seed: int) -> None:
    torch.testing.assert_close(found, model_of(seed)(X).detach())


def test_one_artifact_runs_with_the_weights_of_each_training(saved: Saved) -> None:
    for seed in (0, 1):
        loaded = smelt.load(saved[0][0], weights=saved[seed][1])
        close(loaded(X), seed)
        close(loaded.session()(X), seed)


def test_the_weights_are_in_one_file_only(saved: Saved) -> None:
    path, weights = saved[0]
    tensors = read_safetensors(weights)
    assert {name: list(each.shape) for name, each in tensors.items()} == {
        "0.weight": [16, 8], "0.bias": [16], "2.weight": [4, 16], "2.bias": [4],
    }  # fmt: skip
    assert tensors["0.weight"].numpy().tobytes() not in path.read_bytes()
    artifact = read(path.read_bytes())
    assert not artifact.has_weights and write(artifact) == path.read_bytes()
    assert any(line.endswith("in a file of their own") for line in inspected(artifact, 0))


def test_pickles_and_copies_have_the_weights(saved: Saved) -> None:
    loaded = smelt.load(saved[0][0], weights=saved[1][1])
    close(pickle.loads(pickle.dumps(loaded))(X), 1)
    close(copy.copy(loaded)(X), 1)


def test_an_artifact_without_weights_needs_them(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="in a file of their own, which must be given"):
        smelt.load(saved[0][0])
    whole = smelt.export(model_of(0), (X,)).save(tmp_path / "m.smelt")
    with pytest.raises(SmeltError, match="the artifact has its weights itself"):
        smelt.load(whole, weights=saved[0][1])


def write_safetensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata is not None else {}
    data = b""
    for name, array in tensors.items():
        place = [len(data), len(data) + array.nbytes]
        dtype = {"float32": "F32", "float16": "F16"}[str(array.dtype)]
        header[name] = {"shape": list(array.shape), "data_offsets": place, "dtype": dtype}
        data += array.tobytes()
    text = json.dumps(header, indent=2).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def weights_of(seed: int) -> dict[str, Any]:
    return {name: each.detach().numpy() for name, each in reversed(model_of(seed).state_dict().items())}


def test_files_of_other_writers_are_read(saved: Saved, tmp_path: Path) -> None:
    metadata = {"format": "pt", 'a "quoted" key': "\\ and \n"}
    close(smelt.load(saved[0][0], weights=write_safetensors(tmp_path / "w", weights_of(1), metadata))(X), 1)


def renamed(tensors: dict[str, Any]) -> None:
    tensors["more"] = tensors["0.bias"]


def removed(tensors: dict[str, Any]) -> None:
    del tensors["2.bias"]


def reshaped(tensors: dict[str, Any]) -> None:
    tensors["0.weight"] = tensors["0.weight"].T.copy()


def halved(tensors: dict[str, Any]) -> None:
    tensors["0.bias"] = tensors["0.bias"].astype(numpy.float16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, "the file of weights has more, which the model has not"),
        (removed, r"the file of weights has no 2\.bias, float32\[4\]"),
        (reshaped, r"weight 0\.weight is float32\[8,16\], and must be float32\[16,8\]"),
        (halved, r"weight 0\.bias is float16\[16\], and must be float32\[16\]"),
    ],
)
def test_other_names_shapes_and_dtypes_are_refused(
    saved: Saved, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    tensors = weights_of(0)
    change(tensors)
    with pytest.raises(SmeltError, match=message):
        smelt.load(saved[0][0], weights=write_safetensors(tmp_path / "w", tensors))


def test_damaged_headers_are_refused(saved: Saved, tmp_path: Path) -> None:
    data = saved[0][1].read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    rng, path = numpy.random.default_rng(0), tmp_path / "w"
    refused = 0
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(0, 8 + length))] = int(rng.choice(list(b'{}[]":,0159aF\\ \x00\xff')))
        path.write_bytes(changed[: int(rng.integers(1, len(data)))] if rng.integers(8) == 0 else changed)
        try:
            smelt.load(saved[0][0], weights=path)
        except SmeltError as error:
            assert error.code in ("SM050", "SM052")
            refused += 1
    assert refused > 2500


def test_weights_that_share_memory_must_agree(tmp_path: Path) -> None:
    shared = torch.randn(6, 4)
    transposed = shared.t()

    def both(x: torch.Tensor) -> torch.Tensor:
        return x @ shared @ transposed

    x = torch.randn(2, 6)
    path, weights = tmp_path / "m.smelt", tmp_path / "w.safetensors"
    smelt.export(both, (x,)).save(path, weights=weights)
    torch.testing.assert_close(smelt.load(path, weights=weights)(x), both(x))
    tensors = {name: each.numpy().copy() for name, each in read_safetensors(weights).items()}
    if len(tensors) == 1:
        pytest.skip("the second is a view of the first")
    tensors[max(tensors)][:] = 0
    with pytest.raises(SmeltError, match="shares memory with another"):
        smelt.load(path, weights=write_safetensors(tmp_path / "other", tensors))


def test_entry_points_share_the_weights_of_the_file(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    double, half = (lambda x: x @ weight * 2), (lambda x: x @ weight / 2)
    entries = {"double": smelt.Entry(double, (X[:, :4],)), "half": smelt.Entry(half, (X[:, :4],))}
    path, weights = tmp_path / "m.smelt", tmp_path / "w.safetensors"
    smelt.export_entries(entries, targets=("host", "aarch64")).save(path, weights=weights)
    assert len(read_safetensors(weights)) == 1
    loaded = smelt.load(path, weights=weights)
    torch.testing.assert_close(loaded.entry("half")(X[:, :4]), half(X[:, :4]))


def test_a_file_of_weights_must_be_trusted_too(saved: Saved, tmp_path: Path) -> None:
    secret, public = write_keys(tmp_path / "release")
    other, _ = write_keys(tmp_path / "other")
    path = sign(saved[0][0], secret, tmp_path / "m.smelt")
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(saved[1][1].read_bytes())
    with pytest.raises(SmeltError, match="the file of weights: this file is not signed"):
        smelt.load(path, weights=weights, keys=public)
    assert sign(weights, other) == tmp_path / "w.safetensors.sig"
    with pytest.raises(SmeltError, match=r"the file of weights: .* a key that is not trusted"):
        smelt.load(path, weights=weights, keys=public)
    sign(weights, secret)
    close(smelt.load(path, weights=weights, keys=public)(X), 1)
    Path(f"{weights}.sig").write_bytes(path.read_bytes()[-RECORD_BYTES:])
    with pytest.raises(SmeltError, match="the file of weights: this file is not signed"):
        smelt.load(path, weights=weights, keys=public)
    sign(weights, secret)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(SmeltError, match=r"the file of weights: .* it was changed") as caught:
        smelt.load(path, weights=weights, keys=public)
    assert caught.value.code == "SM053"
