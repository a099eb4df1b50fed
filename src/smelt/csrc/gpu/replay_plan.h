/* Which programs can become CUDA graphs, and what the table says of their values. */
#ifndef SMELT_REPLAY_PLAN_H
#define SMELT_REPLAY_PLAN_H

#include "gpu/replay_state.h"

/* Why a program's steps cannot become a graph; NULL: they can. */
const char *why_no_graph(const Runner *program);

/* Whether a call is made before a graph is launched: it asks the host for numbers, which kernels are given. */
bool is_host_call(const Table *table, const CallRecord *call);

/* Whether a call only moves a generator of the host: nobody reads what it draws. */
static inline bool
draws_unread(const CallRecord *call)
{
    return call->draws == DRAWS_UNREAD;
}

/* What the table says of values. False: what a library call returns is as large as it likes. */
bool fill(Replay *replay, const Runner *program);

/* Why a graph would take much more memory than the steps one by one; NULL: it would not. It has memory for what library
   calls return, which is copied. And all results are there from the beginning, when the inputs that steps drop still are. */
const char *why_too_large(const Replay *replay, const Runner *program);

#endif
