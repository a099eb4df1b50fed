"""Collectives that write their arguments, inside compiled functions: one graph, and what eager computes."""

from tests.capture.distributed.two_processes import in_two_processes

BEGIN = """
import warnings
warnings.simplefilter("ignore")  # some names are old

def called(function, args):
    args = [each.clone() if isinstance(each, torch.Tensor) else [item.clone() for item in each] for each in args]
    try:
        return [function(*args) for _ in range(2)], args
    except (RuntimeError, ValueError, TypeError) as error:
        return type(error), str(error)

def same_in_place(function, *args, fullgraph=True):
    want = repr(called(function, args))
    for backend in ("eager", "aot_eager", "llvm"):
        smelt.reset()
        have = repr(called(smelt.compile(function, fullgraph=fullgraph, backend=backend), args))
        assert have == want, (backend, have, want)
        assert not fullgraph or smelt.counters["graphs"] == 1, smelt.counters

x = torch.arange(4.0) + rank
both, own = dist.new_group([0, 1]), [dist.new_group([0]), dist.new_group([1])]
"""


def test_each_collective_is_part_of_the_graph() -> None:
    in_two_processes(
        BEGIN
        + """
def reduced(x):
    dist.all_reduce(x)
    x /= dist.get_world_size()
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=both)
    dist.all_reduce(x, dist.ReduceOp.MIN, own[rank])
    return x * 2
same_in_place(reduced, x)
same_in_place(reduced, torch.arange(6).view(2, 3).to(torch.float64) + rank)

def sent(x):
    dist.broadcast(x, 1)
    y = x + 1
    dist.broadcast(x.add_(rank), group_src=0, group=both)
    return x, y
same_in_place(sent, x)

def gathered(x):
    whole = torch.empty(8)
    dist.all_gather_into_tensor(whole, x)
    parts = [torch.zeros_like(x) for _ in range(2)]
    dist.all_gather(parts, x.sin())
    return whole + 1, parts, sum(parts)
same_in_place(gathered, x)

def into_given(parts, x):
    dist.all_gather(parts, x)
    return parts[0] + 1
same_in_place(into_given, [torch.zeros(4), torch.zeros(4)], x)

def scattered(x):
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, x)
    return part + 1
same_in_place(scattered, x)

def exchanged(x):
    one, other, sizes = torch.empty(4), torch.empty(3), [2 - rank, 1 + rank]
    dist.all_to_all_single(one, x * 2)
    work = dist.all_to_all_single(other, x[:3].sin(), sizes, sizes, async_op=True)
    work.wait()
    return one + 1, other + 1
same_in_place(exchanged, x)
"""
    )


def test_collectives_in_functions_of_autograd_are_part_of_both_graphs() -> None:
    """As Megatron has them: a collective in forward, its counterpart in backward."""
    in_two_processes("""
class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        work = dist.all_reduce(gradient, async_op=True)
        work.wait()
        return gradient

class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        reduced = x.clone()
        dist.all_reduce(reduced)
        return reduced
    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)
    @staticmethod
    def backward(ctx, gradient):
        part = torch.empty(ctx.shape)
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x.contiguous())
        return received
    @staticmethod
    def backward(ctx, gradient):
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient.contiguous())
        return received

torch.manual_seed(rank)
x, up, down = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
same(lambda x, up, down: Reduce.apply(Copy.apply(x @ up).relu() @ down), x, up, down)
same(lambda x, up, down: Gather.apply(x @ up).relu() @ down, x, up, down)
same(lambda x, up, down: Exchange.apply(Exchange.apply(x @ up).relu() @ down), x, up, down)
""")


def test_work_that_is_waited_for() -> None:
    in_two_processes(
        BEGIN
        + """
def waits(x):
    work = dist.all_reduce(x, async_op=True)
    y = torch.ones(3).sin()
    return work.wait(), work.is_completed(), x + 1, y
same_in_place(waits, x)

parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
@smelt.compile(fullgraph=True)
def average():
    for work in [dist.all_reduce(each.grad, async_op=True) for each in parameters]:
        work.wait()
    for each in parameters:
        each.grad /= dist.get_world_size()
for number in range(3):
    for each in parameters:
        each.grad = torch.full_like(each, rank + number)
    average()
    assert all(each.grad.eq(number + 0.5).all() for each in parameters)

y = x.clone()
work = smelt.compile(lambda y: dist.all_reduce(y, async_op=True))(y)  # it comes out
assert work.wait() and work.is_completed() and y.equal(torch.arange(4.0) * 2 + 1)
"""
    )


def test_processes_of_which_one_is_compiled_meet() -> None:
    in_two_processes(
        BEGIN
        + """
def function(x):
    dist.all_reduce(x + 1)  # nobody looks at the result
    y = x.clone()
    dist.all_reduce(y)
    dist.broadcast(x, 1)
    return y, x
call = smelt.compile(function, fullgraph=True) if rank == 0 else function
for _ in range(3):
    y, z = call(x.clone())
    assert y.equal(torch.arange(4.0) * 2 + 1) and z.equal(torch.arange(4.0) + 1)
"""
    )


def test_what_eager_refuses_or_autograd_sees_is_left_to_python() -> None:
    in_two_processes(
        BEGIN
        + """
def strided(x):
    dist.all_reduce(x.t())
    return x + 1
same_in_place(strided, torch.arange(6.0).view(2, 3) + rank, fullgraph=False)

def too_small(x):
    dist.all_gather_into_tensor(torch.empty(3), x)
    return x
same_in_place(too_small, x, fullgraph=False)

def outside(x):
    dist.all_reduce(x, group=own[1 - rank])
    return x + 1
same_in_place(outside, x, fullgraph=False)

def averaged(x):
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x
same_in_place(averaged, x, fullgraph=False)

def with_history(x):
    y = (x * 2).requires_grad_()
    dist.all_reduce(y)
    return y.detach()
same_in_place(with_history, x, fullgraph=False)
same_in_place(lambda x: dist.all_reduce(x, group=3), x, fullgraph=False)
same_in_place(lambda x: dist.all_reduce([x]), x, fullgraph=False)
"""
    )


def test_parameters_that_hooks_gather_and_release() -> None:
    """As ZeRO-3 of DeepSpeed has it."""
    in_two_processes(
        BEGIN
        + """
def gather(module):
    for each in module.parameters(recurse=False):
        whole = torch.empty(2 * each.shard.numel())
        dist.all_gather_into_tensor(whole, each.shard)
        each.data = whole[: each.whole_shape.numel()].view(each.whole_shape)

def release(each):
    each.data = torch.empty(0)

def gathering_in_backward(module, result):
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)
        @staticmethod
        def backward(ctx, gradient):
            gather(module)
            return gradient
    for each in module.parameters(recurse=False):
        release(each)
    return Gather.apply(result)

def update(each):
    gradient = torch.zeros(2 * each.shard.numel())
    gradient[: each.grad.numel()] = each.grad.flatten()
    part = torch.empty_like(each.shard)
    dist.reduce_scatter_tensor(part, gradient)
    each.shard.sub_(part, alpha=0.05)
    each.grad = None
    release(each)

def trained(compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4))
    for each in model.parameters():
        each.whole_shape, size = each.shape, -(-each.numel() // 2)
        padded = torch.cat([each.detach().flatten(), torch.zeros(2 * size - each.numel())])
        each.shard = padded[rank * size :][:size].clone()
        each.register_post_accumulate_grad_hook(update)
        release(each)
    for module in (model[0], model[2]):
        module.register_forward_pre_hook(lambda module, args: gather(module))
        module.register_forward_hook(lambda module, args, result: gathering_in_backward(module, result))
        if compiled == "each":
            module.forward = smelt.compile(module.forward, fullgraph=True)
    call = smelt.compile(model) if compiled == "whole" else model
    torch.manual_seed(rank)
    losses = []
    for _ in range(4):
        losses.append(call(torch.randn(3, 6)).square().mean())
        losses[-1].backward()
    return [each.detach() for each in losses] + [each.shard for each in model.parameters()]

want = trained(None)
for compiled in ("each", "whole"):
    smelt.reset()
    agree(trained(compiled), want)
    assert smelt.counters["graphs"] >= 2, smelt.counters
"""
    )
