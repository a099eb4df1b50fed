"""A device of our own with another owner than the lazy one: each operator runs at once, on the CPU."""

from tests.processes import run

OWNER = '''
from smelt.dispatch import device, tensors
from smelt.dispatch.module import DeviceModule

class Box:
    """The memory of a storage: a tensor of the CPU over all of it."""

    def __init__(self, flat):
        self.flat = flat

class AtOnce:
    calls = 0

    def real(self, value):
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.real, value))
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or value.device.type != "shadow":
            return value
        shape, stride, offset, dtype = tensors.layout_of(value)
        return torch.empty(0, dtype=dtype).set_(tensors.memory_of(value).flat.untyped_storage(), offset, shape, stride)

    def lazy(self, value, given):
        if isinstance(value, (tuple, list)):
            return type(value)(self.lazy(item, given) for item in value)
        if not isinstance(value, torch.Tensor):
            return value
        for ours, real in given:
            if real.untyped_storage()._cdata == value.untyped_storage()._cdata:
                same = tensors.layout_of(real) == tensors.layout_of(value)
                return ours if same else tensors.view(ours, value.shape, value.stride(), value.storage_offset())
        return tensors.make(value.shape, value.stride(), value.dtype, Box(value))

    def call(self, operator, args, kwargs):
        self.calls += 1
        if operator is torch.ops.aten._to_copy.default:
            device = kwargs.get("device") or args[0].device
            found = operator(self.real(args[0]), **{**kwargs, "device": torch.device("cpu")})
            return found if device.type == "cpu" else tensors.make(found.shape, found.stride(), found.dtype, Box(found))
        if operator is torch.ops.aten._local_scalar_dense.default:
            return self.real(args[0]).item()
        real = self.real(args)
        given = [(a, r) for a, r in zip(args, real) if isinstance(a, torch.Tensor) and a.device.type == "shadow"]
        with torch.no_grad():
            return self.lazy(operator(*real, **{k: self.real(v) for k, v in kwargs.items()}), given)

owner = AtOnce()
print(device.claim("shadow", owner, DeviceModule(torch.default_generator)))
'''


def test_an_owner_answers_operators_at_once() -> None:
    done = run(
        OWNER
        + """
x = torch.arange(6.0, device="shadow").reshape(2, 3)
w = torch.ones(3, 2, device="shadow", requires_grad=True)
loss = (x @ w).relu().sum()
loss.backward()
with torch.no_grad():
    w -= 0.1 * w.grad
x[0].zero_()
print(loss.item(), w.grad.cpu().tolist(), x.cpu().tolist(), owner.calls > 5)
print(w.detach().t().cpu().tolist())
"""
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "shadow:0"
    assert lines[1] == "30.0 [[3.0, 3.0], [5.0, 5.0], [7.0, 7.0]] [[0.0, 0.0, 0.0], [3.0, 4.0, 5.0]] True"


def test_there_is_one_such_device_in_a_process() -> None:
    done = run(OWNER + "device.claim('second', owner, DeviceModule(torch.default_generator))")
    assert "SM070: the device 'second' cannot be made: this process has one device of that kind" in done.stderr


def test_a_backward_before_the_device_is_there() -> None:
    """Of a process that said beforehand that a device may come."""
    done = run(
        "from smelt.dispatch import device\ndevice.reserve()\n"
        "x = torch.ones(2, requires_grad=True)\n(x * 2).sum().backward()\nsmelt.lazy.enable()\n"
        "y = torch.ones(2, device='lazy', requires_grad=True)\n(y * 3).sum().backward()\nprint(y.grad.tolist())"
    )
    assert (done.stdout, done.stderr) == ("[3.0, 3.0]\n", "")
