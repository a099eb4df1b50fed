"""What training steps call of PyTorch that is written in C, or asks for another compiler: once more in Python.

    torch._fused_adam_(params, grads, …)   →   the update of each parameter, by the formulas of `torch.optim`
    scaler.step(opt)                       →   opt.step(), and what it wrote is put back where a gradient was infinite

Capture interprets calls of the keys of `STAND_INS` as calls of their values; see `polyfills.py`.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import adagrad, adam

from smelt.base.torch_internals import internal
from smelt.capture.model.marks import defer, nothing_deferred, unsupported
from smelt.dispatch.loss_scaling import unscale, update_scale
from smelt.ir.nodes.hook_calls import call_hook

_adam: Callable[..., None] = adam._single_tensor_adam
_adagrad: Callable[..., None] = adagrad._single_tensor_adagrad


def grouped_by_kind(lists: Any, with_indices: bool = False) -> Any:
    groups: Any = {}
    for index, first in enumerate(lists[0]):
        kind = (first.device, first.dtype)
        if kind not in groups:
            groups[kind] = ([[] for _ in lists], [])
        for group, tensors in zip(groups[kind][0], lists, strict=True):
            if tensors:
                group.append(tensors[index])
        if with_indices:
            groups[kind][1].append(index)
    return groups


class Unprofiled:
    """A block that a profiler would name: compiled code has no such blocks."""

    def __init__(self, name: str, args: str | None = None) -> None:
        pass

    def __enter__(self) -> "Unprofiled":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def unprofiled(name: str, args: str | None = None) -> Unprofiled:
    return Unprofiled(name, args)


def with_gradients_as_declared(function: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """`Optimizer.step`: gradients flow through it only if the optimizer is declared so."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimizer.defaults["differentiable"])
        return function(optimizer, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _scaled(update: Callable[[], None], grads: Any, written: Any, grad_scale: Any, found_inf: Any) -> None:
    """An update as fused kernels do it under a `GradScaler`: by gradients that are divided by its scale, and not at all
    where some are infinite."""
    touched = [*written] if grad_scale is None else [*written, *grads]
    before = [] if found_inf is None else [tensor.clone() for tensor in touched]
    if grad_scale is not None:
        for grad in grads:
            grad.div_(grad_scale)
    update()
    if found_inf is not None:
        for tensor, old in zip(touched, before, strict=True):
            tensor.copy_(torch.where(found_inf == 1, old, tensor))


def fused_adam(
    *lists: Any, decoupled: bool = False, grad_scale: Any = None, found_inf: Any = None, **named: Any
) -> None:
    *others, steps = lists
    before = [step - 1 for step in steps]  # they are counted already, and will be again
    if named["amsgrad"] is False:
        others[4] = []
    flags = {"has_complex": False, "capturable": False, "differentiable": False}

    def update() -> None:
        _adam(*others, before, None, None, decoupled_weight_decay=decoupled, **flags, **named)

    _scaled(update, others[1], [*others[0], *others[2], *others[3], *others[4]], grad_scale, found_inf)


def fused_adamw(*lists: Any, **named: Any) -> None:
    fused_adam(*lists, decoupled=True, **named)


def fused_adagrad(*lists: Any, grad_scale: Any = None, found_inf: Any = None, **named: Any) -> None:
    *others, steps = lists
    before = [step - 1 for step in steps]
    flags = {"has_sparse_grad": False, "differentiable": False, "has_complex": False}

    def update() -> None:
        _adagrad(*others, before, None, None, **flags, **named)

    _scaled(update, others[1], [*others[0], *others[2]], grad_scale, found_inf)


def fused_sgd(
    params: Any,
    grads: Any,
    buffers: Any,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    if isinstance(lr, torch.Tensor):
        unsupported("SGD(fused=True) with a tensor for its learning rate")

    def update() -> None:
        for place, param in enumerate(params):
            grad = -grads[place] if maximize else grads[place]
            if weight_decay != 0:
                grad = grad.add(param, alpha=weight_decay)
            if momentum != 0:
                buffer = buffers[place]
                if is_first_step:
                    buffer.copy_(grad)
                else:
                    buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
                grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
            param.add_(grad, alpha=-lr)

    _scaled(update, grads, [*params, *buffers] if momentum != 0 else params, grad_scale, found_inf)


def averaging_batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`batch_norm` with a momentum that is computed (of a layer with `momentum=None`): PyTorch's takes none that is not
    known. By a momentum of 1 statistics are those of the batch."""
    mean, var = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    result = torch.nn.functional.batch_norm(input, mean, var, weight, bias, training, 1.0, eps)
    with torch.no_grad():
        running_mean.copy_(momentum * mean + (1 - momentum) * running_mean)
        running_var.copy_(momentum * var + (1 - momentum) * running_var)
    return result


def accumulate_grads(gradients: Any) -> None:
    """Let gradients arrive at leaves with hooks, as PyTorch's engine does: each is hooked, then added to `.grad`."""
    with torch.no_grad():
        for leaf, gradient, before, after in gradients:
            if gradient is None:
                continue
            for hook in list((before or {}).values()):
                gradient = call_hook(hook, gradient, stride=gradient.stride(), hook_type="tensor_pre_hook")
            if leaf.grad is not None:
                leaf.grad.add_(gradient)
            else:
                leaf.grad = torch.empty_like(leaf).copy_(gradient)
            for hook in list((after or {}).values()):
                if hook(leaf) is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def step_unless_infinite(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    """The step is made, and undone where it should not have been: what it writes is known before it is made.

    State that comes to be, and numbers in it, are Python's: those are put back after the graph.
    """
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if args or kwargs or hooks:
        unsupported("scaler.step() with a closure or with hooks, of which nothing can be undone")
    if not nothing_deferred(optimizer.state):
        unsupported("a second scaler.step() of one optimizer, whose state depends on the first one's gradients")
    params = [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    written = list(params)
    kept: list[Any] = []
    for param in params:
        known = optimizer.state.get(param)
        if known is None:
            kept.append(None)
            continue
        kept.append((list(known), {key: each for key, each in known.items() if not isinstance(each, torch.Tensor)}))
        written.extend(each for each in known.values() if isinstance(each, torch.Tensor))
    with torch.no_grad():
        flags = list(state["found_inf_per_device"].values())
        infinite = sum(_beside(flag, flags[0]) for flag in flags) != 0
        before = [tensor.clone() for tensor in written]
        result = optimizer.step(*args, **kwargs)
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(torch.where(_beside(infinite, tensor), old, tensor))
    if any(_is_other(optimizer.state, param, old) for param, old in zip(params, kept, strict=True)):
        defer(_put_back, infinite, optimizer.state, params, kept)
    return result


def _beside(flag: Any, tensor: Any) -> Any:
    """A flag on the device of a tensor: steps are counted on the host, and moved there the flag is moved once."""
    return flag if flag.device == tensor.device else flag.to(tensor.device)


def _is_other(state: Any, param: Any, old: Any) -> bool:
    """Whether anything is another now but tensors that were there, and are written in place."""
    if param not in state:
        return False
    return old is None or len(old[1]) > 0 or len(old[0]) != len(state[param])


def _put_back(infinite: torch.Tensor, state: Any, params: list[Any], kept: list[Any]) -> None:
    if not infinite.item():
        return
    for param, old in zip(params, kept, strict=True):
        if old is None:
            state.pop(param, None)
            continue
        keys, others = old
        for key in [key for key in state[param] if key not in keys]:
            del state[param][key]
        state[param].update(others)


def cyclic_rates(scheduler: Any) -> Any:
    """`CyclicLR.get_lr` without an integer for the cycle, by which each would be another version: the part of a cycle
    that has passed is what is left of a division, and PyTorch's own scales take the cycle's number as a float, too."""
    cycles = 1.0 + scheduler.last_epoch / scheduler.total_size
    passed = cycles % 1.0
    ratio = scheduler.step_ratio
    height = passed / ratio if passed <= ratio else (passed - 1) / (ratio - 1)

    def scale() -> Any:
        if scheduler.scale_mode != "cycle":
            return scheduler.scale_fn(scheduler.last_epoch)
        whole = cycles - passed if scheduler._scale_fn_custom is None else math.floor(cycles)
        return scheduler.scale_fn(whole)

    bounds = zip(scheduler.base_lrs, scheduler.max_lrs, strict=True)
    rates = [low + (high - low) * height * scale() for low, high in bounds]
    if scheduler.cycle_momentum:
        bounds = zip(scheduler.base_momentums, scheduler.max_momentums, strict=True)
        for group, (low, high) in zip(scheduler.optimizer.param_groups, bounds, strict=True):
            momentum = high - (high - low) * height * scale()
            if scheduler.use_beta1:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum
    return rates


def healthy(optimizer: Any) -> None:
    """What optimizers ask of the recording of CUDA graphs, which nothing compiled is part of."""


_USES_GRAD = internal("_use_grad_for_differentiable", "torch.optim.optimizer")

# By the code of what a decorator of torch.optim makes of a function: what it does with it, without asking a compiler
# that is not there.
STEPPING: dict[types.CodeType, Callable[..., Any]] = {
    _USES_GRAD(lambda optimizer: None).__code__: with_gradients_as_declared,
    internal("_disable_dynamo")(lambda: None).__code__: plainly,
}

STAND_INS: dict[Any, Callable[..., Any]] = {
    torch.autograd.profiler.record_function: unprofiled,
    internal("_C._group_tensors_by_device_and_dtype"): grouped_by_kind,
    internal("_fused_adam_"): fused_adam,
    internal("_fused_adamw_"): fused_adamw,
    internal("_fused_adagrad_"): fused_adagrad,
    internal("_fused_sgd_"): fused_sgd,
    internal("_amp_foreach_non_finite_check_and_unscale_"): unscale,
    internal("_amp_update_scale_"): update_scale,
    internal("amp.GradScaler._maybe_opt_step"): step_unless_infinite,
    torch.optim.lr_scheduler.CyclicLR.get_lr: cyclic_rates,
    **{
        getattr(torch.optim.Optimizer, name): healthy
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
        if hasattr(torch.optim.Optimizer, name)
    },
}
