"""Programs with what PyTorch has beside operators: hooks, checks, gradients and data of intermediates, lazy modules."""

from typing import Any

import numpy as np
import torch
from torch._higher_order_ops.map import map as control_map
from torch._higher_order_ops.while_loop import while_loop

from tests.capture.features.running import feature

# hooks on intermediates


@feature("register_hook on intermediates", backward=True)
def hook_scales(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    return y.sin()


@feature("register_hook on intermediates", backward=True)
def hook_looks(x: torch.Tensor) -> Any:
    y = x.exp()
    y.register_hook(seen_gradient)
    return y * x


SEEN: list[Any] = []


def seen_gradient(grad: torch.Tensor) -> None:
    SEEN.append(grad.shape)


@feature("register_hook on intermediates", backward=True)
def hook_removed(x: torch.Tensor) -> Any:
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 3)
    handle.remove()
    return y * 4


@feature("register_hook on intermediates", backward=True)
def hook_of_two(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(torch.neg)
    return y * y


@feature("register_hook on intermediates", backward=True)
def hook_closure(x: torch.Tensor) -> Any:
    scale = x.detach().abs() + 1
    y = x.tanh()
    y.register_hook(lambda grad: grad * scale)
    return y.sum() * 2


@feature("register_hook on intermediates", requires_grad=True)
def hook_inside_backward(x: torch.Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad * 5)
    (grad,) = torch.autograd.grad((y * y).sum(), x)
    return grad


# torch._check


@feature("torch._check")
def check(x: torch.Tensor) -> Any:
    torch._check(x.shape[0] == 2)
    return x + 1


@feature("torch._check")
def check_message(x: torch.Tensor) -> Any:
    torch._check(x.dim() == 2, lambda: f"{x.dim()} dimensions")
    return x * 2


@feature("torch._check")
def check_fails(x: torch.Tensor) -> Any:
    torch._check(x.dim() == 3, lambda: f"wrong: {x.dim()}")
    return x


@feature("torch._check")
def check_kin(x: torch.Tensor) -> Any:
    torch._check_value(x.dim() > 1)
    torch._check_type(isinstance(x, torch.Tensor))
    torch._check_index(x.shape[1] > 1, lambda: "no")
    torch._check_with(NotImplementedError, x.dim() > 0, lambda: "no")
    return x + 1


@feature("torch._check")
def check_value_fails(x: torch.Tensor) -> Any:
    try:
        torch._check_value(x.dim() == 7, lambda: "seven")
    except ValueError as error:
        return x + 1, str(error)
    return x


# 0-d tensors as numbers


@feature("0-d tensors as alpha or value")
def tensor_alpha(x: torch.Tensor) -> Any:
    return torch.add(x, x, alpha=torch.tensor(2.0))


@feature("0-d tensors as alpha or value")
def tensor_value(x: torch.Tensor) -> Any:
    return torch.addcmul(x, x, x, value=torch.tensor(0.5)), torch.addcdiv(x, x, x + 1, value=torch.tensor(2.0))


@feature("0-d tensors as alpha or value")
def tensor_fill(x: torch.Tensor) -> Any:
    return torch.full_like(x, torch.tensor(3.0)), x.masked_fill(x > 2, torch.tensor(1.5)), x.clone().fill_(x.sum())


@feature("0-d tensors as alpha or value")
def tensor_alpha_computed(x: torch.Tensor) -> Any:
    return x.sub(x, alpha=x.mean()), torch.clamp(x, min=x.mean())


@feature("0-d tensors as alpha or value")
def tensor_pad(x: torch.Tensor) -> Any:
    return torch.where(x > 1, x, torch.tensor(0.0)), torch.lerp(x, x + 1, torch.tensor(0.25)), x.pow(torch.tensor(2))


@feature("0-d tensors as alpha or value")
def tensor_alpha_outside(x: torch.Tensor) -> Any:
    return x.add(x, alpha=SCALE), torch.full((2,), SCALE), x.addmm(x[:, :2], x, alpha=SCALE, beta=SCALE)


SCALE = torch.tensor(2.0)


# .grad and .data = of intermediates


@feature(".grad and .data of intermediates")
def grad_of_new(x: torch.Tensor) -> Any:
    w = x.detach().clone().requires_grad_()
    (w * w).sum().backward()
    return w.grad


@feature(".grad and .data of intermediates", requires_grad=True)
def grad_of_intermediate(x: torch.Tensor) -> Any:
    y = x * 2
    return y + 1, y.grad is None


@feature(".grad and .data of intermediates", requires_grad=True)
def retained_grad(x: torch.Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad, x.grad


@feature(".grad and .data of intermediates")
def data_of_intermediate(x: torch.Tensor) -> Any:
    y = x + 1
    y.data = x * 3
    return y * 2, y


@feature(".grad and .data of intermediates")
def data_read(x: torch.Tensor) -> Any:
    y = x + 1
    y.data.mul_(2)
    return y, y.data.sum()


@feature(".grad and .data of intermediates")
def grad_stored(x: torch.Tensor) -> Any:
    w = torch.zeros(2, 3, requires_grad=True)
    w.grad = x * 2
    return w.grad + 1


@feature(".grad and .data of intermediates")
def grad_of_plain(x: torch.Tensor) -> Any:
    y = x * 2
    y.grad = x + 1
    return y.grad * 2, y


@feature(".grad and .data of intermediates", requires_grad=True)
def leafness(x: torch.Tensor) -> Any:
    y = x * 2
    return y + 1, y.is_leaf, x.is_leaf, y.detach().is_leaf, y.retains_grad, y.requires_grad


# higher-order operators


@feature("higher-order operators")
def cond_on_shape(x: torch.Tensor) -> Any:
    return torch.cond(x.shape[0] > 1, lambda t: t + 1, lambda t: t - 1, (x,))


@feature("higher-order operators")
def cond_on_data(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 16, lambda t: t.sin(), lambda t: t.cos(), (x,))


@feature("higher-order operators")
def cond_closure(x: torch.Tensor) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 16, lambda: y + 1, lambda: y - x) * 2


@feature("higher-order operators")
def cond_tuple(x: torch.Tensor) -> Any:
    a, b = torch.cond(x.mean() > 3, lambda t: (t + 1, t * 2), lambda t: (t - 1, t * 3), (x,))
    return a + b


@feature("higher-order operators")
def looped(x: torch.Tensor) -> Any:
    return while_loop(lambda k, t: k < 3, lambda k, t: (k + 1, t * 2), (torch.tensor(0), x))


@feature("higher-order operators")
def looped_on_data(x: torch.Tensor) -> Any:
    return while_loop(lambda t: t.sum() < 100, lambda t: (t + 1,), (x,))


@feature("higher-order operators")
def mapped(x: torch.Tensor) -> Any:
    return control_map(lambda row, y: row * 2 + y, x, x[0].clone())


@feature("higher-order operators", backward=True)
def cond_gradient(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 16, lambda t: t.sin(), lambda t: t * t, (x,))


# autograd.Function.apply with keywords


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.factor, None


class Split(torch.autograd.Function):
    """With a context of its own."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x


@feature("autograd.Function.apply with keywords", backward=True)
def apply_default(x: torch.Tensor) -> Any:
    return Scaled.apply(x).sin()


@feature("autograd.Function.apply with keywords", backward=True)
def apply_keyword(x: torch.Tensor) -> Any:
    return Scaled.apply(x, factor=3.0)


@feature("autograd.Function.apply with keywords", backward=True)
def apply_all_keywords(x: torch.Tensor) -> Any:
    return Scaled.apply(factor=3.0, x=x)


@feature("autograd.Function.apply with keywords", backward=True)
def apply_by_setup(x: torch.Tensor) -> Any:
    return Split.apply(x, y=x + 1)


@feature("autograd.Function.apply with keywords", requires_grad=True)
def apply_wrong(x: torch.Tensor) -> Any:
    return Scaled.apply(x, other=3.0)


# lazy modules


@feature("lazy modules' first call", made=True)
def lazy_linear() -> Any:
    return torch.nn.LazyLinear(4)


@feature("lazy modules' first call", made=True)
def lazy_sequence() -> Any:
    return torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU(), torch.nn.LazyLinear(2))


@feature("lazy modules' first call", made=True)
def lazy_convolution() -> Any:
    return torch.nn.Sequential(torch.nn.Unflatten(0, (1, 2)), torch.nn.LazyConv1d(4, 2), torch.nn.LazyBatchNorm1d())


@feature("lazy modules' first call", made=True, backward=True)
def lazy_trained() -> Any:
    return torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Tanh(), torch.nn.LazyLinear(1))


# NumPy


@feature("NumPy")
def numpy_and_back(x: torch.Tensor) -> Any:
    return torch.from_numpy(np.sin(x.numpy()) * 2)


@feature("NumPy")
def numpy_functions(x: torch.Tensor) -> Any:
    a = x.numpy()
    return torch.as_tensor(np.concatenate([a, a + 1]).sum(axis=0))


@feature("NumPy")
def numpy_arguments(x: torch.Tensor) -> Any:
    a = np.linspace(0, 1, 3)
    return x + torch.from_numpy(a).float()


@feature("NumPy")
def numpy_scalars(x: torch.Tensor) -> Any:
    return x * float(np.sqrt(4.0)), int(np.prod((2, 3))), np.pi


@feature("NumPy")
def numpy_returned(x: torch.Tensor) -> Any:
    a = x.numpy()
    return (a.T @ a + np.eye(3)).astype(np.float32).tolist()


@feature("NumPy")
def numpy_written(x: torch.Tensor) -> Any:
    a = x.clone().numpy()
    a[0] = 7
    a += 1
    return torch.tensor(a), a.shape, a.dtype == np.float32
