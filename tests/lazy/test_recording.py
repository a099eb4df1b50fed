"""Recording in C: a call that was recorded before takes no Python, and tensors keep and let go of their memory."""

from tests.layout import needs_layout
from tests.processes import run

WATCHED = """
import smelt, sys, torch, gc, weakref
smelt.lazy.enable()

def calls_of(round):
    seen = []
    sys.setprofile(lambda frame, event, _: seen.append(frame) if event == "call" else None)
    try:
        round()
    finally:
        sys.setprofile(None)
    return [frame.f_code.co_name for frame in seen if frame.f_globals["__name__"].startswith("smelt")]
"""


@needs_layout
def test_a_call_that_was_recorded_before_takes_no_python() -> None:
    done = run(
        WATCHED
        + """
x, y, m = (torch.randn(4, 4).to("lazy") for _ in range(3))
parameter = torch.nn.Parameter(m.clone())

def round():
    z = (x + y * 2.0 - 1).relu().t()
    z.mul_(0.5)
    a, b = z.split(2)
    w = torch.mm(parameter.detach(), z)[1:, 0].sum()
    return torch._foreach_add([w, a], 1.0), torch.cat([a, b]), z.max(0)

with torch.no_grad():
    for _ in range(3):
        kept = round()
        smelt.lazy.step()
        del kept
    print(calls_of(round))
"""
    )
    assert done.stdout.split() == ["[]"], done


def test_memory_lives_as_long_as_a_tensor_of_its_storage() -> None:
    done = run(
        WATCHED
        + """
from smelt.dispatch.tensors import memory_of
x = torch.randn(4).to("lazy")
for _ in range(2):  # made by Python, then in C
    y = x + 1
    view, memory = y[1:], memory_of(y)
    count = sys.getrefcount(memory)
    del y
    print(memory_of(view) is memory, sys.getrefcount(memory) == count)
    del view
    print(sys.getrefcount(memory) == count - 1)
    smelt.lazy.step()
"""
    )
    assert done.stdout.split() == ["True"] * 6, done.stderr


def test_a_tensor_that_changes_its_layout_is_another_value() -> None:
    done = run(
        WATCHED
        + """
x = torch.arange(6.0).view(2, 3).to("lazy")
for _ in range(3):
    y = x + 1
    y.t_()
    z = y * 2
    y.unsqueeze_(0)
    print(z.tolist(), (y + 0).shape)
"""
    )
    expected = "[[2.0, 8.0], [4.0, 10.0], [6.0, 12.0]] torch.Size([1, 3, 2])"
    assert done.stdout.strip().splitlines() == [expected] * 3, done.stderr


def test_literals_that_python_finds_equal_are_different_calls() -> None:
    done = run(
        WATCHED
        + """
x = torch.tensor([0.0, 2.0, 3.0]).to("lazy")
for _ in range(2):
    print(x.sum(0, keepdim=True).shape, x.sum(0, keepdim=False).shape, torch.copysign(x, 0.0).tolist(),
          torch.copysign(x, -0.0).tolist(), (x * 1).dtype, (x.int() * True).dtype, (x.int() * 1.0).dtype)
"""
    )
    line = "torch.Size([1]) torch.Size([]) [0.0, 2.0, 3.0] [-0.0, -2.0, -3.0] torch.float32 torch.int32 torch.float32"
    assert done.stdout.strip().splitlines() == [line] * 2, done.stderr


def test_threads_record_one_after_another() -> None:
    done = run(
        WATCHED
        + """
import threading
x = torch.ones(4).to("lazy")
found = []

def work(number):
    y = x * number
    for _ in range(200):
        y = y + 1
        if _ % 50 == 0:
            y.sum().item()
    found.append((number, y.tolist()))

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(found) == [(number, [number + 200.0] * 4) for number in range(4)])
"""
    )
    assert done.stdout.split() == ["True"], done
