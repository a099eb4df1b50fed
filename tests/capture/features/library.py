"""Programs with what Python's library has: itertools, operator, unittest."""

import itertools
import operator
import unittest
from typing import Any

import torch

from tests.capture.features.running import feature

# itertools.accumulate and kin, operator.iand and kin


@feature("itertools.accumulate")
def accumulate(x: torch.Tensor) -> Any:
    return list(itertools.accumulate([x, x + 1, x + 2]))


@feature("itertools.accumulate")
def accumulate_function(x: torch.Tensor) -> Any:
    return list(itertools.accumulate([1, 2, 3], operator.mul)), list(itertools.accumulate([x, x], torch.add, initial=x))


@feature("itertools.accumulate")
def accumulate_lambda(x: torch.Tensor) -> Any:
    made = itertools.accumulate([x, x * 2, x * 3], lambda a, b: a * b + 1)
    return next(made), next(made)


@feature("itertools.accumulate")
def other_itertools(x: torch.Tensor) -> Any:
    pairs = list(itertools.pairwise([1, 2, 3]))
    products = list(itertools.product("ab", [1, 2]))
    chosen = list(itertools.compress("abc", [1, 0, 1]))
    dropped = list(itertools.dropwhile(lambda k: k < 2, [1, 2, 1])), list(itertools.takewhile(bool, [1, 0, 2]))
    longest = list(itertools.zip_longest([1, 2], "a", fillvalue="-"))
    grouped = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])]
    return x + len(pairs), pairs, products, chosen, dropped, longest, grouped, list(itertools.starmap(pow, [(2, 3)]))


@feature("itertools.accumulate")
def combinations(x: torch.Tensor) -> Any:
    found = [a * b for a, b in itertools.combinations([x, x + 1, x + 2], 2)]
    left, right = itertools.tee([1, 2, 3])
    orders = list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations_with_replacement("ab", 2))
    repeated = list(itertools.repeat(1, 2)), list(itertools.filterfalse(bool, [0, 1]))
    return found, next(left), list(right), orders, repeated


@feature("operator.iand and kin")
def operator_sets(x: torch.Tensor) -> Any:
    names = {1, 2, 3}
    same = operator.iand(names, {1, 2})
    operator.ior(names, {7})
    operator.isub(names, {1})
    operator.ixor(names, {9})
    return x + len(names), same is names, names


@feature("operator.iand and kin")
def operator_tensors(x: torch.Tensor) -> Any:
    y = x.clone()
    z = operator.iadd(y, 2)
    operator.imul(y, 3)
    return y, z is y, operator.itruediv(y, 2), operator.ipow(x.clone(), 2)


@feature("operator.iand and kin")
def operator_numbers(x: torch.Tensor) -> Any:
    bits = operator.iand(6, 3), operator.ilshift(1, 3)
    return x * operator.iadd(1, 2), bits, operator.ifloordiv(7, 2), operator.imod(7, 4)


@feature("operator.iand and kin")
def operator_lists(x: torch.Tensor) -> Any:
    items = [x]
    same = operator.iadd(items, [x + 1])
    operator.imul(items, 2)
    return items, same is items, operator.iconcat([1], [2]), operator.concat([1], [2])


@feature("operator.iand and kin")
def operator_items(x: torch.Tensor) -> Any:
    table = {"a": x}
    operator.setitem(table, "b", x + 1)
    operator.delitem(table, "a")
    items = [1, 2, 1]
    places = operator.countOf(items, 1), operator.indexOf(items, 2)
    return table, places, operator.contains(items, 2), operator.length_hint(items)


@feature("operator.iand and kin")
def operator_getters(x: torch.Tensor) -> Any:
    first = operator.itemgetter(0)([x, x + 1])
    both = operator.itemgetter(1, 0)([1, 2])
    called = operator.methodcaller("add", 1)(x)
    shape = operator.attrgetter("shape")(x)
    return first + called, both, shape, operator.truth([]), operator.is_(x, x), operator.index(3)


@feature("operator.iand and kin")
def operator_dunder(x: torch.Tensor) -> Any:
    flags = torch.tensor([True, False])
    result = operator.iand(flags.clone(), torch.tensor([True, True]))
    return x, result, operator.__ior__(flags.clone(), True), operator.not_(0), operator.call(torch.sin, x)


# unittest assertions


@feature("unittest assertions")
def assert_equal(x: torch.Tensor) -> Any:
    case = unittest.TestCase()
    case.assertEqual(x.dim(), 2)
    case.assertTrue(x.shape[0] == 2)
    case.assertIs(x, x)
    return x + 1


@feature("unittest assertions")
def assert_others(x: torch.Tensor) -> Any:
    CASE.assertIn(1, [1, 2])
    CASE.assertIsInstance(x, torch.Tensor)
    CASE.assertIsNone(None)
    CASE.assertNotEqual(1, 2)
    CASE.assertFalse(0)
    CASE.assertGreater(2, 1)
    CASE.assertLessEqual(2, 2)
    return x + 1


@feature("unittest assertions")
def assert_containers(x: torch.Tensor) -> Any:
    CASE.assertEqual([1, 2], [1, 2])
    CASE.assertEqual({"a": 1}, {"a": 1})
    CASE.assertListEqual([1], [1])
    CASE.assertEqual({1, 2}, {2, 1})
    CASE.assertEqual("ab", "ab")
    CASE.assertEqual((1,), (1,))
    CASE.assertCountEqual([1, 2], [2, 1])
    return x * 2


@feature("unittest assertions")
def assert_raises(x: torch.Tensor) -> Any:
    with CASE.assertRaises(ValueError):
        raise ValueError("no")
    with CASE.assertRaises(KeyError) as caught:
        {}["a"]
    with CASE.assertRaisesRegex(ValueError, "n."):
        raise ValueError("no")
    return x + 1, str(caught.exception)


@feature("unittest assertions")
def assert_fails(x: torch.Tensor) -> Any:
    try:
        CASE.assertEqual(x.dim(), 3)
    except AssertionError as error:
        return x + 1, str(error)
    return x


class Case(unittest.TestCase):
    """A test as programs have them."""

    def runTest(self) -> None:
        pass


CASE = Case()
