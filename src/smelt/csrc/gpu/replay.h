/* A program's CUDA graphs: recorded when calls repeat, launched instead of its steps. */
#ifndef SMELT_REPLAY_H
#define SMELT_REPLAY_H

#include "runner/run.h"

typedef struct Replay Replay;

/* What a program knows of its CUDA graphs; NULL: it can have none, and `why_not` says why, or there is an exception for
   want of memory. */
Replay *replay_new(const Runner *program, const char **why_not);
void replay_free(Replay *replay);

/* How many graphs there are, how often they were launched, and why the last call was done step by step: a dict. */
PyObject *replay_told(const Runner *program);

/* With the GIL, before the first step: what PyTorch's settings are. 0, or -1 with an exception. */
int replay_ask_settings(Run *run);

/* Does all steps by launching a CUDA graph, which is recorded first if calls repeat. 1: done; 0: the steps are still to be
   done; -1 with an exception and the GIL. */
int replay_steps(Run *run);

#endif
