"""The schedules of attention: `ATTENTION.plan` chooses one for a kernel that weighs its scores."""

from smelt.codegen.attention_problem import problem_of, why_no_problem
from smelt.codegen.cpu.attention import backward, few_queries, forward
from smelt.codegen.cpu.kernel_schedules import ProblemKind, Schedule
from smelt.ir.check_kernel import is_attention

SCHEDULES = (
    Schedule(
        "blocks", "attention: scores of a panel of queries stay in the cache, with an online softmax",
        forward.why_not, forward.cycles, forward.write,
    ),
    Schedule(
        "few queries", "attention of up to four queries: keys and values are read in place, once",
        few_queries.why_not, few_queries.cycles, few_queries.write,
    ),
    Schedule(
        "gradients", "of attention: scores are recomputed block by block",
        backward.why_not, backward.cycles, backward.write,
    ),
)  # fmt: skip
ATTENTION = ProblemKind(is_attention, why_no_problem, problem_of, SCHEDULES)
