/* Calls that make no sense, of every function that takes a pointer, a number or a name; prints their statuses.

     stranger affine.smelt training.smelt      models of tests/native/deploy/models.py */
#include <smelt.h>

#include <limits.h>
#include <stdio.h>

static smelt_error error;

static void
tell(const char *what, smelt_status status)
{
    printf("%s %d %s\n", what, (int)status, status ? error.message : "ok");
}

static void
ask_nobody(const smelt_model *model)
{
    const void *none[] = {
        smelt_model_name(NULL), smelt_model_target(NULL), smelt_model_manifest(NULL, NULL), smelt_session_model(NULL),
        smelt_model_input(NULL, 0), smelt_model_output(model, SIZE_MAX), smelt_model_state(model, 1),
        smelt_model_entry(model, SIZE_MAX), smelt_entry_input(model, 1, 0), smelt_entry_output(model, 0, 9)};
    const long long missing[] = {
        smelt_model_find_input(model, NULL), smelt_model_find_output(NULL, "y"), smelt_model_find_state(model, NULL),
        smelt_model_find_entry(model, NULL), smelt_entry_find_input(model, 3, "x"), smelt_model_choice(model, 9, "x"),
        smelt_model_choice(model, 0, NULL)};
    size_t answers = smelt_model_input_count(NULL) + smelt_model_state_count(NULL) + smelt_model_entry_count(NULL)
                     + smelt_entry_input_count(model, SIZE_MAX) + smelt_dtype_size((smelt_dtype)99)
                     + smelt_dtype_size((smelt_dtype)-5);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        answers += none[i] != NULL;
    }
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        answers += missing[i] != -1;
    }
    smelt_model_close(NULL);
    smelt_session_free(NULL);
    printf("nobody %zu %s %s\n", answers, smelt_dtype_name((smelt_dtype)99), smelt_status_text((smelt_status)99));
}

static void
give_nonsense(smelt_session *session)
{
    float x[16] = {0};
    int64_t sizes[] = {2, 4};
    const smelt_tensor good = {SMELT_FLOAT32, 2, sizes, NULL, x};
    smelt_tensor bad[6] = {good, good, good, good, good, good}, output;
    tell("no session", smelt_run(NULL, &good, 1, &error));
    tell("no inputs", smelt_run(session, NULL, 1, &error));
    tell("many inputs", smelt_run(session, &good, SIZE_MAX, &error));
    bad[0].dtype = (smelt_dtype)99;
    bad[1].dtype = (smelt_dtype)-99;
    bad[2].rank = -1;
    bad[3].rank = INT_MAX;
    bad[4].sizes = NULL;
    bad[5].data = NULL;
    for (int i = 0; i < 6; i++) {
        tell("bad input", smelt_run(session, &bad[i], 1, &error));
    }
    for (int i = 0; i < 3; i++) {
        sizes[0] = i == 0 ? -1 : i == 1 ? INT64_MIN : INT64_MAX;
        tell("bad size", smelt_run(session, &good, 1, &error));
    }
    sizes[0] = 2;
    tell("no call", smelt_output(session, 0, &output, &error));
    tell("bind", smelt_bind_output(session, 0, x, 4, &error));
    tell("small", smelt_run(session, &good, 1, &error));
    smelt_bind_output(session, 0, x, sizeof x, NULL); /* what a call writes may be what it reads */
    tell("run", smelt_run(session, &good, 1, &error));
    printf("in place %g %g\n", x[0], x[7]);
    tell("no place", smelt_output(session, 0, NULL, &error));
    tell("no output", smelt_output(session, 1, &output, &error));
    tell("no entry", smelt_session_choose(session, 1, &error));
    tell("no ends", smelt_returned(session, NULL, NULL, &error));
    tell("no state", smelt_state_read(session, 0, x, 4, &error));
    tell("no path", smelt_session_save(session, NULL, &error));
    tell("empty path", smelt_session_save(session, "", &error));
}

int
main(int count, char **paths)
{
    smelt_model *model = NULL, *other = NULL;
    smelt_session *session = NULL, *none = NULL;
    float x[4];
    smelt_session_options options = {.size = sizeof options, .threads = INT_MAX};
    if (count != 3 || smelt_model_open(paths[1], NULL, &model, NULL) || smelt_model_open(paths[2], NULL, &other, NULL)) {
        return 2;
    }
    smelt_model *unopened = model;
    tell("no path", smelt_model_open(NULL, NULL, &unopened, &error));
    printf("model %d\n", unopened != NULL);
    ask_nobody(model);
    tell("no model", smelt_session_new(NULL, NULL, &none, &error));
    tell("many threads", smelt_session_new(model, &options, &none, &error));
    if (smelt_session_new(model, NULL, &session, NULL)) {
        return 2;
    }
    smelt_model_close(model); /* the session goes on */
    give_nonsense(session);
    smelt_session_free(session);
    if (smelt_session_new(other, NULL, &session, NULL)) {
        return 2;
    }
    tell("from nowhere", smelt_state_write(session, 0, NULL, sizeof x, &error));
    tell("too few", smelt_state_read(session, 0, x, sizeof x - 1, &error));
    smelt_session_free(session);
    smelt_model_close(other);
    return 0;
}
