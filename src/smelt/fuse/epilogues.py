"""What is done to the sums of a product in its own kernel, and what better waits for the next one.

    p = mm(…); h = p + r; a = h * w; b = a * x; sum(a), sum(b), … h …
    →  {p, h}, and a and b join the sums: the kernel of the product stores h alone

Whatever follows point by point could be computed where the sums are. What is stored there and read elsewhere has a
price, though: of all that follows, in order, as much is taken as leaves one value to be stored, beside those that are
in memory anyhow. What has to wait for another kernel that reads the product does not follow:

    g = mm(…); n = norm(g); w' = w - g / n    →  {g}, {n}, {w'}
"""

from smelt.fuse.lowering.values import FusionKind, FusionValue

_MOST = 32  # values that are looked at
_FAR = 64  # values behind one of them; where there are more, it is taken to have to wait


def waiting(product: FusionValue) -> frozenset[FusionValue]:
    """What could follow in the kernel of a product, and does not."""
    taken, following = {product}, _following(product)
    best = 0
    for number, value in enumerate(following, 1):
        taken.add(value)
        if _stored(taken) <= 1:
            best = number
    return frozenset(following[best:])


def _following(product: FusionValue) -> list[FusionValue]:
    """Values that read the product, or what follows from it, at their own points, in order."""
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
    """How many values would be in memory only because something else reads them."""
    return sum(not value.needed and any(user not in taken for user in value.users) for value in taken)
