"""Function transforms of `torch.func` as functions that make functions, so that capture can follow what they make.

    grad(f)(x)    →    transformed(x), whose `differentiate(f, 0, False, (x,), {})` capture makes a node of the graph

Called by Python, where such a function leaves the captured code, they do as PyTorch's own do.
"""

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


def differentiate(func: Function, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Gradients, the value, and what is returned beside it."""
    gradients, value = torch.func.grad_and_value(func, argnums, has_aux)(*args, **kwargs)
    return (gradients, *value) if has_aux else (gradients, value, None)


def batch(func: Function, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, args: Any, kwargs: Any) -> Any:
    return torch.func.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)(*args, **kwargs)


def pull_back(func: Function, primals: Any, has_aux: bool, cotangents: Any) -> Any:
    return torch.func.vjp(func, *primals, has_aux=has_aux)[1](cotangents)


def push_forward(func: Function, primals: Any, tangents: Any, strict: bool, has_aux: bool) -> Any:
    return torch.func.jvp(func, primals, tangents, strict=strict, has_aux=has_aux)


def jacobian(name: str, func: Function, argnums: Any, has_aux: bool, args: Any) -> tuple[Any, Any]:
    """Derivatives of all results, and what is returned beside them."""
    result = getattr(torch.func, name)(func, argnums, has_aux=has_aux)(*args)
    return result if has_aux else (result, None)


def grad(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    def transformed(*args: Any, **kwargs: Any) -> Any:
        gradients, _, aux = differentiate(func, argnums, has_aux, args, kwargs)
        return (gradients, aux) if has_aux else gradients

    return transformed


def grad_and_value(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    def transformed(*args: Any, **kwargs: Any) -> Any:
        gradients, value, aux = differentiate(func, argnums, has_aux, args, kwargs)
        return gradients, (value, aux) if has_aux else value

    return transformed


def vmap(
    func: Function, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: Any = None
) -> Function:
    def transformed(*args: Any, **kwargs: Any) -> Any:
        return batch(func, in_dims, out_dims, randomness, chunk_size, args, kwargs)

    return transformed


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    def pull(cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        return pull_back(func, primals, has_aux, cotangents)

    if not has_aux:
        return func(*primals), pull
    value, aux = func(*primals)
    return value, pull, aux


def jvp(func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    return push_forward(func, primals, tangents, strict, has_aux)


def jacrev(func: Function, argnums: Any = 0, *, has_aux: bool = False) -> Function:
    def transformed(*args: Any) -> Any:
        derivatives, aux = jacobian("jacrev", func, argnums, has_aux, args)
        return (derivatives, aux) if has_aux else derivatives

    return transformed


def jacfwd(func: Function, argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error") -> Function:
    def transformed(*args: Any) -> Any:
        derivatives, aux = jacobian("jacfwd", func, argnums, has_aux, args)
        return (derivatives, aux) if has_aux else derivatives

    return transformed


def hessian(func: Function, argnums: Any = 0) -> Function:
    return jacfwd(jacrev(func, argnums), argnums)


TRANSFORMS: dict[Any, Function] = {
    torch.func.grad: grad,
    torch.func.grad_and_value: grad_and_value,
    torch.func.vmap: vmap,
    torch.func.vjp: vjp,
    torch.func.jvp: jvp,
    torch.func.jacrev: jacrev,
    torch.func.jacfwd: jacfwd,
    torch.func.hessian: hessian,
}

MADE_OUTSIDE: dict[str, tuple[Function, tuple[str, ...], dict[str, Any]]] = {
    "grad.<locals>.wrapper": (grad, ("func", "argnums", "has_aux"), {}),
    "grad_and_value.<locals>.wrapper": (grad_and_value, ("func", "argnums", "has_aux"), {}),
    "vmap.<locals>.wrapped": (vmap, ("func", "in_dims", "out_dims", "randomness"), {"chunk_size": None}),
    "jacrev.<locals>.wrapper_fn": (jacrev, ("func", "argnums"), {"chunk_size": None, "has_aux": False}),
    "jacfwd.<locals>.wrapper_fn": (jacfwd, ("func", "argnums", "has_aux"), {"randomness": "error"}),
}
"""By the name of what PyTorch's transforms return: what makes the same, the variables of its closure that it takes, and
those that have to be as they are by default."""
