"""Chooses which operations on a product's result join the product's kernel, and which wait for the next one.

    p = mm(…); h = p + r; a = h * w; b = a * x; sum(a), sum(b), … h …
    →  {p, h}, and a and b join the sums: the kernel of the product stores h alone

Every pointwise operation that follows could be computed on the sums in registers. But storing a value that is read
elsewhere has a price. So of the operations that follow, in order, as many join as leave one value to be stored, besides
those that are in memory anyway. An operation that needs another kernel's result computed from the product waits:

    g = mm(…); n = norm(g); w' = w - g / n    →  {g}, {n}, {w'}
"""

from smelt.fuse.lowering.values import FusionKind, FusionValue

_MOST = 32  # values that are looked at
_FAR = 64  # values behind one of them; where there are more, it is taken to have to wait


def waiting(product: FusionValue) -> frozenset[FusionValue]:
    """Values that could be computed in the kernel of a product, but wait for a later one."""
    taken, following = {product}, _following(product)
    best = 0
    for number, value in enumerate(following, 1):
        taken.add(value)
        if _stored(taken) <= 1:
            best = number
    return frozenset(following[best:])


def _following(product: FusionValue) -> list[FusionValue]:
    """Values that read the product, or values computed from it, at their own points, in order."""
    followers, open_ends = {product}, set(product.users)
    following: list[FusionValue] = []
    while open_ends and len(following) < _MOST:
        value = min(open_ends, key=lambda user: user.id)
        open_ends.remove(value)
        if value.kind is not FusionKind.POINTWISE or _has_to_wait(value, product, followers):
            continue
        if all(reading.identity_read for reading in value.readings if reading.value in followers):
            following.append(value)
            followers.add(value)
            open_ends.update(value.users)
    return following


def _has_to_wait(value: FusionValue, product: FusionValue, followers: set[FusionValue]) -> bool:
    """Whether something else that it reads is computed from `followers`, in another kernel."""
    behind = [reading.value for reading in value.readings if reading.value not in followers]
    seen: set[FusionValue] = set()
    while behind:
        source = behind.pop()
        if source in followers or len(seen) > _FAR:
            return True
        if source.id > product.id and source not in seen:  # what comes before the product does not read it
            seen.add(source)
            behind += source.call.reads if source.call is not None else [reading.value for reading in source.readings]
    return False


def _stored(taken: set[FusionValue]) -> int:
    """How many values would be stored only because something else reads them."""
    return sum(not value.needed and any(user not in taken for user in value.users) for value in taken)
