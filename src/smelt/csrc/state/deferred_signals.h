/* Defers the program's signal handlers while the compiler has changed its state: see state/deferred_signals.c. */
#ifndef SMELT_DEFERRED_SIGNALS_H
#define SMELT_DEFERRED_SIGNALS_H

#include <stdbool.h>

/* Whether handlers wait from now on, until end_deferring_signals(). Nests. */
bool begin_deferring_signals(void);
void end_deferring_signals(void);

int deferred_signals_init(void);

#endif
