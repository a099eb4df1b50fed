"""Many expressions evaluated by one call: Python code is generated for them, once.

    evaluator([4*s0 + 1, max(s0, s1)])   →   lambda s0, s1: (4*s0 + 1, max(s0, s1)), called with values of s0 and s1
"""

from collections.abc import Callable, Mapping, Sequence

from smelt.symbolic.expressions import Expression, Symbol

_MANY_PARTS = 200
"""Of one expression: Python's parser has a limit to how deeply code is nested."""


def evaluator(expressions: Sequence[Expression]) -> Callable[[Mapping[Symbol, int]], Sequence[int]]:
    """A function from the values of the symbols to those of the expressions."""
    symbols = {symbol: f"s{number}" for number, symbol in enumerate(_symbols(expressions))}
    if not expressions or any(str(each).count("(") > _MANY_PARTS for each in expressions):
        return lambda values: [each.evaluate(values.__getitem__) for each in expressions]
    text = f"lambda {', '.join(symbols.values())}: ({''.join(f'{_code(each, symbols)}, ' for each in expressions)})"
    compute: Callable[..., tuple[int, ...]] = eval(text, {"__builtins__": {"max": max, "min": min}})
    needed = tuple(symbols)
    return lambda values: compute(*[values[symbol] for symbol in needed])


def _symbols(expressions: Sequence[Expression]) -> list[Symbol]:
    return sorted({symbol for each in expressions for symbol in each.symbols()}, key=lambda symbol: symbol.text)


def _code(expression: Expression, symbols: Mapping[Symbol, str]) -> str:
    terms = []
    for monomial, factor in expression.terms.items():
        factors = [str(factor)] if factor != 1 or not monomial else []
        for atom in monomial:
            if isinstance(atom, Symbol):
                factors.append(symbols[atom])
                continue
            left, right = _code(atom.left, symbols), _code(atom.right, symbols)
            is_call = atom.function in ("max", "min")
            factors.append(f"{atom.function}({left}, {right})" if is_call else f"(({left}) {atom.function} ({right}))")
        terms.append(" * ".join(factors))
    return " + ".join(terms) or "0"
