/* Writes a failure to the caller's error record. */
#include "executor/error.h"

#include <stdarg.h>
#include <stdio.h>

const char *
smelt_status_text(smelt_status status)
{
    static const char *const texts[] = {
        "no error", "a call that makes no sense", "a file cannot be read or written", "a file is damaged, or no artifact",
        "an artifact of another version", "no code for this machine", "not enough memory", "a wrong input",
        "a size out of bounds", "nothing was exported for such inputs", "the model raised an error",
        "too many states", "a checkpoint of another model", "a GPU or its driver failed", "a file that is not trusted",
    };
    const unsigned number = (unsigned)status;
    return number < sizeof texts / sizeof *texts ? texts[number] : "an unknown error";
}

smelt_status
smelt_fail(smelt_error *error, smelt_status status, const char *format, ...)
{
    if (error) {
        va_list values;
        va_start(values, format);
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, values);
        va_end(values);
    }
    return status;
}

smelt_status
smelt_refuse(smelt_error *error, const char *section, int64_t number, const char *what)
{
    return smelt_fail(error, SMELT_ERROR_FILE, "this program is damaged: %s %lld has a wrong %s", section,
                      (long long)number, what);
}
