/* How a failure is reported: a status and a message, written to the caller's error record. */
#ifndef SMELT_EXECUTOR_ERROR_H
#define SMELT_EXECUTOR_ERROR_H

#include "smelt.h"

/* Returns `status`. */
#ifdef SMELT_STATIC_MODEL /* which has no texts */
__attribute__((always_inline)) static inline smelt_status
smelt_fail(smelt_error *error, smelt_status status, const char *format, ...)
{
    (void)error, (void)format;
    return status;
}
#else
__attribute__((format(printf, 3, 4))) smelt_status
smelt_fail(smelt_error *error, smelt_status status, const char *format, ...);
#endif

/* SMELT_ERROR_FILE: record `number` of a section is wrong. */
smelt_status smelt_refuse(smelt_error *error, const char *section, int64_t number, const char *what);

#endif
