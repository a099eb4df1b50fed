/* Opens a model and makes a session with options of other versions; prints both statuses. */
#include <smelt.h>
#include <stdio.h>
#include <string.h>

static const char *path;

/* `size` as the caller says it, and one byte behind the fields that are known. */
static void
attempt(const char *name, size_t open_size, size_t session_size, char behind)
{
    union { smelt_open_options fields; char bytes[256]; } open;
    union { smelt_session_options fields; char bytes[256]; } options;
    memset(&open, 0, sizeof open);
    memset(&options, 0, sizeof options);
    open.fields.size = open_size;
    open.fields.device_number = -1; /* not read where the device is the host */
    open.fields.device = SMELT_DEVICE_HOST;
    open.bytes[sizeof open.fields + 3] = behind;
    options.fields.size = session_size;
    options.fields.threads = 1;
    options.bytes[sizeof options.fields + 3] = behind;
    smelt_model *model = NULL, *other = NULL;
    smelt_session *session = NULL;
    smelt_status opened = smelt_model_open(path, &open.fields, &other, NULL);
    smelt_model_open(path, NULL, &model, NULL);
    smelt_status made = smelt_session_new(model, &options.fields, &session, NULL);
    printf("%s %d %d\n", name, (int)opened, (int)made);
    smelt_session_free(session);
    smelt_model_close(model);
    smelt_model_close(other);
}

int
main(int count, char **arguments)
{
    if (count != 2) {
        return 2;
    }
    path = arguments[1];
    const size_t open = sizeof(smelt_open_options), session = sizeof(smelt_session_options);
    attempt("earlier", open - sizeof(smelt_device) - sizeof(int), session - 2 * sizeof(void *), 0);
    attempt("later", open + 16, session + 16, 0);
    attempt("later and used", open + 16, session + 16, 1);
    attempt("no size", 0, 0, 0);
    attempt("nonsense", (size_t)-1, (size_t)-1, 0);
    return 0;
}
