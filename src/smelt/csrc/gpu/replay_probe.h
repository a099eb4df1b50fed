/* Whether the GPU waits for the host: if not, a CUDA graph does not pay. */
#ifndef SMELT_REPLAY_PROBE_H
#define SMELT_REPLAY_PROBE_H

#include "gpu/replay_state.h"

/* Finds out whether the GPU waits for the host, in the first calls and then ever more rarely. A short program: whether it
   has nothing to do when the call begins. A long one: see replay_probe. */
void begin_probe(Replay *replay, Run *run, int32_t device, CudaStream stream);

/* After each step of a call whose probe has an event, and after the last. */
int replay_probe(void *run);
void replay_end_probe(Run *run);

#endif
