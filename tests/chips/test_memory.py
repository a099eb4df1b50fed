"""What PyTorch sees of a chip's memory: the chip's own addresses, so that tensors share memory only where they do."""

import torch

import smelt


def test_tensors_of_their_own_do_not_overlap() -> None:
    """Storages are small objects side by side on the host, whatever they stand for: their places say nothing."""
    before = smelt.counters["chip_fallbacks"]
    many = [torch.ones(1000).to("sim") for _ in range(24)]
    torch._foreach_mul_(many, 3.0)
    assert smelt.counters["chip_fallbacks"] == before
    assert all(torch.equal(each.cpu(), torch.full((1000,), 3.0)) for each in many)


def test_addresses_are_apart_by_their_sizes() -> None:
    one, other = torch.ones(1000).to("sim"), torch.ones(1000).to("sim")
    assert abs(one.data_ptr() - other.data_ptr()) >= 4000
    assert one[5:].data_ptr() == one.data_ptr() + 20


def test_a_tensor_that_grows_has_other_memory() -> None:
    tensor = torch.ones(3).to("sim")
    before = tensor.data_ptr()
    tensor.resize_(1000)
    assert tensor.data_ptr() != before and torch.equal(tensor[:3].cpu(), torch.ones(3))


def test_copies_of_the_same_layout_stay_on_the_chip() -> None:
    source, into = torch.arange(12.0).view(3, 4).to("sim"), torch.zeros(3, 4).to("sim")
    names = ("chip_copies_in", "chip_copies_out", "chip_fallbacks", "chip_launches")
    before = [smelt.counters[name] for name in names]
    into.copy_(source)
    into.t().copy_(source.t())
    assert [smelt.counters[name] for name in names] == before
    assert torch.equal(into.cpu(), torch.arange(12.0).view(3, 4))


def test_a_copy_onto_itself_shifted_is_the_hosts() -> None:
    tensor = torch.arange(8.0)
    ours = tensor.to("sim")
    ours[1:].copy_(ours[:-1].clone())
    assert torch.equal(ours.cpu(), torch.tensor([0.0, 0, 1, 2, 3, 4, 5, 6]))


def test_results_without_elements_need_no_host() -> None:
    before = smelt.counters["chip_fallbacks"]
    assert torch.zeros(0, 3, device="sim").shape == (0, 3)
    assert (torch.ones(0, device="sim") + 1).shape == (0,)
    assert smelt.counters["chip_fallbacks"] == before
