"""Plans that trade work for memory: what to save so that a training step fits the budget, at least recomputation.

    choices(problem) → [default, …, least memory]      ever more work, ever less memory; the first that fits is taken

What the backward holds of the forward at one time is what was saved, and what it has recomputed and not used yet. Where
everything between two cuts of the forward is recomputed, the second part is all of it: so the forward is seen as a
chain of blocks, cut where little crosses, and a plan chooses for each run of blocks

    one block      how much of it to save: by a minimum cut with some price on bytes (`mincut`), from the default's
                   no heavy recomputation to random numbers only
    several        to save what crosses at the end, and recompute all within

at least work for a bound on what is held while the backward goes through any of them: what was saved up to there, what
is recomputed, the backward's own values. Over these choices the plans are exact up to the rounding of bytes to a 128th
of what the default saves: dynamic programming along the chain, once for each of some bounds. Their peaks are then
simulated (`simulate_peak`), and those that take more work for no less memory are dropped. The list depends on the graph
alone, and the first plan within budget is taken: so work never falls and the peak never rises as the budget shrinks.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

from torch import fx

from smelt.autograd.joint.aliasing import view_root
from smelt.autograd.partition.costs import own_bytes, work_of
from smelt.autograd.partition.maxflow import INFINITE
from smelt.autograd.partition.mincut import PER_BYTE, Problem, gradients_of, why_not_recompute
from smelt.autograd.partition.simulate_peak import PeakSimulator
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import Phase, RecomputePolicy, phase_of, recompute_policy_of
from smelt.meta.effects import why_not_share
from smelt.meta.memory_peak import Peak

BLOCKS = 32  # the most blocks
SHORT = 12  # a short chain: the default saves at most so many values
NEAR = 4  # a cut is compared with those up to so many shares away
STEPS = 128  # bytes are rounded up to this part of what the default saves
PRICES = (0.25, 1.0, 4.0, 16.0, 1e6)  # the work that a byte less is worth; at last, any
BOUNDS = 32  # the number of bounds on held bytes, evenly spaced below what the default holds
DOUBT = 0.01  # a plan must save this share of the peak to be worth more work


@dataclass(frozen=True, slots=True)
class Choice:
    """What to save, the work of recomputing the rest, and the bytes that the step allocates for what is saved."""

    saved: tuple[fx.Node, ...]
    work: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fitting:
    """The plan taken for a budget: the bytes it allowed, the peaks of the plan and of the default, and which of the
    ways to run it has that peak."""

    choice: Choice
    allowed: int
    peak: Peak
    default: Peak
    way: int = 0

    def __str__(self) -> str:
        return (
            f"memory budget: {self.allowed} bytes at the peak of a step; expected {self.peak.step} of them, "
            f"{self.default.step} without a budget"
        )


def fit(plans: Sequence[Choice], budget: float, peaks_of: Callable[[Choice], Sequence[Peak]]) -> Fitting:
    """The first plan whose peak is within `budget`, or the one with the least peak if there is none.

    A plan has a peak for each way it can be run, the fastest first; other ways go before plans of more work. A budget
    that is an int is the peak itself. A float is a part of the default's saved bytes: the peak may be what it is by
    default, less the other part of them. No peak is below the bytes saved, which spares measuring some plans.
    """
    known: dict[Choice, Sequence[Peak]] = {}

    def peaks(choice: Choice) -> Sequence[Peak]:
        if choice not in known:
            known[choice] = peaks_of(choice)
        return known[choice]

    default = peaks(plans[0])[0]
    allowed = budget if isinstance(budget, int) else default.step - int((1 - budget) * plans[0].bytes)
    best = Fitting(plans[0], allowed, default, default)
    for choice in plans:
        for way, peak in enumerate(peaks(choice) if choice.bytes <= allowed else ()):
            if peak.step <= allowed:
                return Fitting(choice, allowed, peak, default, way)
    for choice in sorted(plans, key=lambda choice: choice.bytes):
        for way, peak in enumerate(peaks(choice) if choice.bytes < best.peak.step else ()):
            if peak.step < best.peak.step:
                best = Fitting(choice, allowed, peak, default, way)
    return best


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to treat the blocks from `first` up to `last`, not included.

    `needs_entry` says that it needs what crosses into the first block to be saved, `saves_exit` that it saves what
    crosses out of the last.
    """

    first: int
    last: int
    needs_entry: bool
    saves_exit: bool
    saved_nodes: frozenset[fx.Node]
    saved: int
    recomputed: int  # bytes that are recomputed
    base: int  # bytes of the backward's own values at the same time
    work: int


class _ValueCosts:
    """Per value: its bytes, the work to recompute it, and whether it can be recomputed at all."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bytes = {node: own_bytes(node) for node in problem.early}
        heavy = {node for node in problem.early if why_not_recompute(node) is not None}
        never = {node for node in heavy if never_recomputed(node)}
        items = {node for node in problem.early if node.target is operator.getitem and node.args[0] in never}
        self.never = frozenset(never | items)  # of several results of a call, items are what can be saved
        self.work = {node: work_of(node) if node in heavy else 0 for node in problem.early}
        self.savable = frozenset(node for node in problem.early if problem.price(node) < INFINITE)
        self.usual = frozenset(problem.fewest_bytes())
        self.total = self.size(self.usual)

    def size(self, nodes: Iterable[fx.Node]) -> int:
        return sum(self.bytes[node] for node in nodes)

    def reached(self, wanted: Collection[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
        """What is saved of `wanted`, with whatever cannot be recomputed; and all that is recomputed."""
        saved: set[fx.Node] = set()
        recomputed: set[fx.Node] = set()
        pending = list(self.problem.read)
        while pending:
            node = pending.pop()
            if node in saved or node in recomputed:
                continue
            drawn = self.size(used for used in node.all_input_nodes if used in self.never)
            if (node in wanted and node in self.savable) or node in self.never or 0 < self.bytes[node] <= drawn:
                saved.add(node)  # rather what was made of random numbers first: it may be a mask
            else:
                recomputed.add(node)
                pending.extend(node.all_input_nodes)
        return saved, recomputed

    def choice(self, wanted: Collection[fx.Node]) -> Choice:
        """The plan that saves what it can use of `wanted`."""
        saved, recomputed = self.reached(wanted)
        ordered = tuple(node for node in self.problem.early if node in saved)
        return Choice(ordered, sum(self.work[node] for node in recomputed), self.size(saved))


def never_recomputed(node: fx.Node) -> bool:
    """Whether a heavy value cannot be recomputed, has a side effect, or was asked to be saved."""
    if node.op == "placeholder" or why_not_share(node) is not None:
        return True
    return recompute_policy_of(node) is RecomputePolicy.SAVED


def choices(problem: Problem) -> list[Choice]:
    """Plans for a joint graph in the order of their work; the default comes first."""
    costs = _ValueCosts(problem)
    usual = costs.choice(costs.usual)
    if costs.total == 0:
        return [usual]
    by_saved = {usual.saved: usual}
    for cuts in (_shares, _single_values):
        for wanted in _plans(_Chain(costs, cuts)):
            choice = costs.choice(wanted)
            by_saved.setdefault(choice.saved, choice)
    simulator = PeakSimulator(problem)
    peaks = {choice: simulator.peaks(set(choice.saved)) for choice in by_saved.values()}
    ordered = sorted(by_saved.values(), key=lambda choice: (choice.work, peaks[choice]))
    best = peaks[usual]
    saved_nodes = [usual]
    for choice in ordered:  # ever more work: worth it only for fewer bytes, counted in one way or the other
        if any(mine < least * (1 - DOUBT) for mine, least in zip(peaks[choice], best, strict=True)):
            saved_nodes.append(choice)
            best = (min(best[0], peaks[choice][0]), min(best[1], peaks[choice][1]))
    return saved_nodes


class _Chain:
    """The forward as a chain of blocks, with the options for each run of them."""

    def __init__(self, costs: _ValueCosts, cuts: "Callable[[_Chain], list[int]]") -> None:
        self.costs = costs
        self.nodes = _forward_order(costs.problem)
        self.crossing = self._crossings()
        self.cuts = [0, *cuts(self), len(self.nodes)]  # block k is nodes[cuts[k] : cuts[k + 1]]
        self.base = self._base()

    def _crossings(self) -> list[frozenset[fx.Node]]:
        """By position: the values made before it that the forward needs from there on."""
        last: dict[fx.Node, int] = {}
        for index, node in enumerate(self.nodes):
            if phase_of(node) is not Phase.BACKWARD:
                for used in node.all_input_nodes:
                    root = view_root(used)
                    if self.costs.bytes[root]:
                        last[root] = index
        crossings: list[frozenset[fx.Node]] = []
        open_now: set[fx.Node] = set()
        for index, node in enumerate(self.nodes):
            open_now = {value for value in open_now if last[value] >= index}
            crossings.append(frozenset(open_now))
            if node in last:
                open_now.add(node)
        return [*crossings, frozenset()]

    def _base(self) -> list[int]:
        """By block: the most the backward's own values take while it goes through the block.

        Gradients that are returned pile up towards the end, so there is room to recompute much before.
        """
        problem = self.costs.problem
        block_of = {
            node: block for block in range(self.blocks) for node in self.nodes[self.cuts[block] : self.cuts[block + 1]]
        }
        late = [node for node in problem.joint.traced.graph.nodes if node in problem.late]
        last = {view_root(used): step for step, node in enumerate(late) for used in node.all_input_nodes}
        last |= {view_root(node): len(late) for node in gradients_of(problem.joint)}
        most = [0] * self.blocks
        leaving: dict[int, int] = {}
        now, block = 0, self.blocks - 1
        for step, node in enumerate(late):
            read = [(block_of[used], used) for used in map(view_root, node.all_input_nodes) if used in block_of]
            block = min([block, *(place for place, used in read if own_bytes(used))])
            size = own_bytes(node) if node in last else 0
            now += size
            most[block] = max(most[block], now)
            leaving[last.get(node, step)] = leaving.get(last.get(node, step), 0) + size
            now -= leaving.pop(step, 0)
        return most

    @property
    def blocks(self) -> int:
        return len(self.cuts) - 1

    @cached_property
    def options(self) -> list[list[_Option]]:
        """Every way to treat every run of blocks, by the first of them."""
        by_price = self._saved_by_price()
        options: list[list[_Option]] = []
        for first in range(self.blocks):
            ways = self._options(first, first + 1, self.costs.usual, needs_entry=False)
            for saved_nodes in by_price:
                ways += self._options(first, first + 1, saved_nodes, needs_entry=True)
            for last in range(first + 2, self.blocks + 1):
                ways += self._options(first, last, by_price[-1], needs_entry=True)
            options.append(list(dict.fromkeys(ways)))
        return options

    def _saved_by_price(self) -> list[frozenset[fx.Node]]:
        """What is saved inside the blocks at each price per byte, given what crosses between them."""
        costs, problem = self.costs, self.costs.problem
        there = {*problem.live_anyway, *problem.free}.union(*(self.crossing[cut] for cut in self.cuts))

        def work(node: fx.Node) -> int:
            return INFINITE if node in costs.never else costs.work[node] * PER_BYTE

        saved: list[frozenset[fx.Node]] = []
        for price in PRICES:

            def bytes_at(node: fx.Node, price: float = price) -> int:
                if node not in costs.savable:
                    return INFINITE
                return 1 if node in there else int(costs.bytes[node] * price * PER_BYTE) + 1

            saved.append(frozenset(problem.cheapest(bytes_at, work)) - there)
        return saved

    def _options(self, first: int, last: int, inside: frozenset[fx.Node], *, needs_entry: bool) -> list[_Option]:
        """To save `inside` of the blocks, with or without what crosses out of them."""
        nodes = self.nodes[self.cuts[first] : self.cuts[last]]
        saved_nodes = frozenset(node for node in nodes if node in inside)
        ends = self.crossing[self.cuts[last]] - (self.crossing[self.cuts[first]] if needs_entry else frozenset())
        options = []
        for saves_exit in (False, True) if ends else (False,):
            mine = saved_nodes | ends if saves_exit else saved_nodes
            rebuilt = self.costs.size(node for node in nodes if node in self.costs.usual and node not in mine)
            base = max(self.base[first:last])
            work = self._work(nodes, mine) if needs_entry else 0
            size = self.costs.size(mine)
            options.append(_Option(first, last, needs_entry, saves_exit, mine, size, rebuilt, base, work))
        return options

    def _work(self, nodes: Sequence[fx.Node], saved_nodes: Collection[fx.Node]) -> int:
        """The work of recomputing within some blocks, given all that crosses into them."""
        inside = set(nodes)
        recomputed: set[fx.Node] = set()
        pending = [node for node in nodes if node in self.costs.usual]
        while pending:
            node = pending.pop()
            if node in inside and node not in saved_nodes and node not in recomputed and node not in self.costs.never:
                recomputed.add(node)
                pending.extend(node.all_input_nodes)
        return sum(self.costs.work[node] for node in recomputed)


def _shares(chain: _Chain) -> list[int]:
    """Cuts: one for each share of the default's bytes, where the least crosses, if that is little."""
    costs = chain.costs
    share = max(1, costs.total // BLOCKS)
    best: dict[int, tuple[int, int, int]] = {}  # by share: bytes that cross, those the default does not save, where
    done = 0
    for index, node in enumerate(chain.nodes):
        crosses = chain.crossing[index]
        here = (costs.size(crosses), costs.size(crosses - costs.usual), index)
        if 0 < done < costs.total:
            best[done // share] = min(best.get(done // share, here), here)
        done += costs.bytes[node] if node in costs.usual else 0
    least = {place: min(best[near][0] for near in best if abs(near - place) <= NEAR) for place in best}
    return sorted(index for place, (crossing, _, index) in best.items() if crossing <= least[place] * 3 // 2)


def _single_values(chain: _Chain) -> list[int]:
    """Cuts for a short chain: after each value that the default saves."""
    costs = chain.costs
    saved = [index for index, node in enumerate(chain.nodes) if node in costs.usual and costs.bytes[node]]
    return [index + 1 for index in saved if index + 1 < len(chain.nodes)] if len(saved) <= SHORT else []


def _forward_order(problem: Problem) -> list[fx.Node]:
    """The early values in the order the forward computes them; what only the backward asked for, next to its inputs."""
    place: dict[fx.Node, int] = {}
    for index, node in enumerate(problem.early):
        inputs = [place[used] for used in node.all_input_nodes if used in place]
        place[node] = index if phase_of(node) is not Phase.BACKWARD else max(inputs, default=0)
    return sorted(problem.early, key=place.__getitem__)


@dataclass(frozen=True, slots=True)
class _Partial:
    """The best known treatment of all blocks up to some cut, at some number of saved bytes."""

    work: int
    saved: int
    option: _Option | None
    before: "_Partial | None"

    def saved_nodes(self) -> frozenset[fx.Node]:
        nodes: set[fx.Node] = set()
        partial: _Partial | None = self
        while partial is not None and partial.option is not None:
            nodes |= partial.option.saved_nodes
            partial = partial.before
        return frozenset(nodes)


def _plans(chain: _Chain) -> list[frozenset[fx.Node]]:
    """What to save in the plan of least work for each of some bounds on held bytes, from the default's own down.

    What the backward's own values add is an estimate, so plans are made with and without it.
    """
    plans: list[frozenset[fx.Node]] = []
    for share in (1, 0):
        usual, high = 0, 0
        for block in range(chain.blocks):
            nodes = chain.nodes[chain.cuts[block] : chain.cuts[block + 1]]
            usual += chain.costs.size(node for node in nodes if node in chain.costs.usual)
            high = max(high, usual + chain.base[block] * share)
        for step in range(1, BOUNDS):
            partial = _least_work(chain, high * step // BOUNDS, share)
            if partial is not None:
                plans.append(partial.saved_nodes())
    return plans


def _least_work(chain: _Chain, bound: int, share: int) -> _Partial | None:
    """The least work for the whole chain that holds no more than `bound` at any block of the backward.

    There it holds what was saved up to the block, what it recomputes in it, and its own values.
    """
    grain = max(1, chain.costs.total // STEPS)
    # By cut: (whether what crosses it is saved, bytes saved so far) → the best so far.
    reached: list[dict[tuple[bool, int], _Partial]] = [{} for _ in range(chain.blocks + 1)]
    reached[0][True, 0] = _Partial(0, 0, None, None)
    for block in range(chain.blocks):
        for (crossing, _), partial in reached[block].items():
            for option in chain.options[block]:
                saved, work = partial.saved + option.saved, partial.work + option.work
                if saved + option.recomputed + option.base * share > bound or (option.needs_entry and not crossing):
                    continue
                place = (option.saves_exit, saved // grain)
                known = reached[option.last].get(place)
                if known is None or (work, saved) < (known.work, known.saved):
                    reached[option.last][place] = _Partial(work, saved, option, partial)
    return min(reached[-1].values(), key=lambda partial: (partial.work, partial.saved), default=None)
