/* smelt.h: run a model that was exported to a file, in C, without Python.

   A whole program. In Python, smelt.export(model, (example,)).save("model.smelt") writes the file; the model here takes
   float32[2, 4], and `smelt inspect model.smelt` prints what a file takes.

     #include <smelt.h>
     #include <stdio.h>

     int main(void)
     {
         smelt_error error;
         smelt_model *model;
         smelt_session *session;
         if (smelt_model_open("model.smelt", NULL, &model, &error)
             || smelt_session_new(model, NULL, &session, &error)) {
             fprintf(stderr, "%s\n", error.message);
             return 1;
         }
         float x[2 * 4] = {1, 2, 3, 4, 5, 6, 7, 8};
         const int64_t sizes[] = {2, 4};
         smelt_tensor input = {SMELT_FLOAT32, 2, sizes, NULL, x}, output;
         if (smelt_run(session, &input, 1, &error) || smelt_output(session, 0, &output, &error)) {
             fprintf(stderr, "%s\n", error.message);
             return 1;
         }
         printf("%g\n", ((float *)output.data)[0]);
         smelt_session_free(session);
         smelt_model_close(model);
         return 0;
     }

   Compile and link it in one of these ways:

     cc infer.c $(smelt cc) -o infer                                with Python's package, whose folders have all
     cc infer.c $(pkg-config --cflags --libs smelt) -o infer        where libsmelt is installed
     find_package(smelt REQUIRED)                                   in CMake, with
     target_link_libraries(infer PRIVATE smelt::smelt)              or smelt::static, which becomes part of the program

   By hand: -lsmelt, and -lm -lpthread -ldl with the static library. Paths are UTF-8.

   A MODEL is an open file. It never changes, and any number of threads may use it. A SESSION runs it: it has the memory
   for one call at a time, the threads that help, and its own copy of the model's state (parameters that are trained,
   buffers, caches). Make a session for each thread that calls.

   Every function that can fail returns a status, SMELT_OK (0) or what went wrong, and takes a `smelt_error` to say more;
   NULL is allowed there. Nothing is printed, nothing ends the process, nothing is kept outside of models and sessions. */
#ifndef SMELT_H
#define SMELT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(SMELT_STATIC)
#define SMELT_API __attribute__((visibility("default")))
#else
#define SMELT_API
#endif

/* Of this interface, and of the files it reads. Programs that were built with this version run with every later
   libsmelt.so.1: functions, fields and numbers stay, and options get further fields at their ends. */
#define SMELT_VERSION 1

/* --- errors ---------------------------------------------------------------------------------------------- */

typedef enum {
    SMELT_OK = 0,
    SMELT_ERROR_ARGUMENT = 1,    /* a call that makes no sense: a null pointer, a number or name that is not there */
    SMELT_ERROR_IO = 2,          /* a file cannot be opened, read or written */
    SMELT_ERROR_FILE = 3,        /* a file is no artifact, or is damaged */
    SMELT_ERROR_VERSION = 4,     /* an artifact of another version of smelt */
    SMELT_ERROR_TARGET = 5,      /* an artifact without code that this machine can run */
    SMELT_ERROR_MEMORY = 6,      /* there is not enough memory */
    SMELT_ERROR_INPUT = 7,       /* an input is missing, or has another dtype or rank */
    SMELT_ERROR_SIZE = 8,        /* an input has a size that the model was not exported for */
    SMELT_ERROR_UNSUPPORTED = 9, /* the model was exported for no such combination of sizes and values */
    SMELT_ERROR_RAISED = 10,     /* the model raised an error of its own, as it does in Python */
    SMELT_ERROR_LIMIT = 11,      /* the model went through more states than the session allows */
    SMELT_ERROR_MISMATCH = 12,   /* a checkpoint is of another model */
    SMELT_ERROR_DEVICE = 13,     /* a GPU or its driver failed */
    SMELT_ERROR_TRUST = 14       /* a file that is not signed by a trusted key, or not in the list of allowed files */
} smelt_status;

typedef struct {
    smelt_status status;
    char message[256]; /* in one line, for people */
} smelt_error;

/* What a status means, in a few words. */
SMELT_API const char *smelt_status_text(smelt_status status);

/* --- tensors --------------------------------------------------------------------------------------------- */

typedef enum {
    SMELT_NONE = -1, /* as an input: it is not given */
    SMELT_BOOL = 0,  /* a byte, 0 or 1 */
    SMELT_UINT8 = 1,
    SMELT_INT8 = 2,
    SMELT_INT16 = 3,
    SMELT_INT32 = 4,
    SMELT_INT64 = 5,
    SMELT_FLOAT16 = 6,
    SMELT_BFLOAT16 = 7,
    SMELT_FLOAT32 = 8,
    SMELT_FLOAT64 = 9,
    SMELT_COMPLEX64 = 10,
    SMELT_COMPLEX128 = 11,
    SMELT_UINT16 = 12,
    SMELT_UINT32 = 13,
    SMELT_UINT64 = 14,
    SMELT_FLOAT8_E4M3FN = 15,
    SMELT_FLOAT8_E5M2 = 16
} smelt_dtype;

/* Bytes of an element; 0 for what is no dtype. And its name: "float32". */
SMELT_API size_t smelt_dtype_size(smelt_dtype dtype);
SMELT_API const char *smelt_dtype_name(smelt_dtype dtype);

enum { SMELT_MAX_RANK = 64 };

/* Memory with a shape. `strides` count elements; NULL: contiguous, the last dimension innermost. A Python number is a
   tensor of rank 0: a bool, an int64, a float64. Contiguous inputs are used where they are; others are copied. Where a
   model runs on a GPU, `data` may be memory of that GPU, contiguous: the driver is asked. */
typedef struct {
    smelt_dtype dtype;
    int rank;
    const int64_t *sizes;
    const int64_t *strides;
    void *data;
} smelt_tensor;

/* --- models ---------------------------------------------------------------------------------------------- */

typedef struct smelt_model smelt_model;

/* Where a model or session gets memory from. `alignment` is a power of two. `allocate` returns NULL where there is none;
   `release` is given the size that was asked for. They may be called by any thread that uses the model. */
typedef struct {
    void *context;
    void *(*allocate)(void *context, size_t size, size_t alignment);
    void (*release)(void *context, void *memory, size_t size);
} smelt_allocator;

enum {
    SMELT_OPEN_TRUST_WEIGHTS = 1, /* weights are not held against their checksum: large files open at once */
    SMELT_OPEN_WITHOUT_CODE = 2,  /* everything is checked, no code is loaded: nothing can be run */
    SMELT_OPEN_OWN_PRODUCTS = 4,  /* on a GPU the file's own code multiplies matrices, not cuBLASLt where that is there:
                                     slower, and results do not depend on what is installed */
    SMELT_OPEN_VERIFIED_MAPPING = 8 /* a file that `keys` or `allowed` restrict stays mapped, where processes share its
                                       weights: only if nobody else can write to the file as long as the model is open */
};

/* What is to run a model that was exported for GPUs too. The driver is opened by name (libcuda.so.1), and only if the file
   has code for GPUs: nothing of CUDA need be there otherwise. cuBLASLt (libcublasLt.so.13, .12 or .11) multiplies matrices
   if it is found as well. */
typedef enum {
    SMELT_DEVICE_BEST = 0, /* a GPU if there is one that runs the file's code, else this processor */
    SMELT_DEVICE_HOST = 1,
    SMELT_DEVICE_CUDA = 2
} smelt_device;

typedef struct {
    size_t size; /* sizeof(smelt_open_options); fields behind it count as 0 */
    unsigned flags;
    const smelt_allocator *allocator; /* NULL: malloc */
    smelt_device device;
    int device_number; /* of the GPU, as the driver counts them */
    const unsigned char (*keys)[32]; /* not NULL: the file must be signed by one of these Ed25519 public keys */
    size_t key_count;
    const unsigned char (*allowed)[32]; /* not NULL: the SHA-256 of the file must be one of these */
    size_t allowed_count;
    const char *weights; /* a safetensors file, of an artifact that was saved without its weights */
} smelt_open_options;

/* Opens a file and checks all of it: one that is cut, altered or not an artifact is refused. The file is mapped, so that
   processes share its weights; it must not be changed in place as long as the model is open (replace it by renaming,
   as smelt_session_save does). `options` may be NULL.

   Files have machine code: open only files of people whom you trust. `keys` and `allowed` refuse the others before anything
   of a file is interpreted or executable. They are verified on a private copy, which nobody can change afterwards.
   Environment variables do the same for all files of a process, beside what its options say: SMELT_TRUSTED_KEYS and
   SMELT_ALLOWED_FILES, lists of 64 hexadecimal digits each between commas. docs/security.md has the threat model.

   `weights` has all weights of the model by name, with its dtypes and shapes, and no others; those of another training are
   as good. They are copied. Where signatures are required, the file's is in a second file, named like it with .sig behind. */
SMELT_API smelt_status smelt_model_open(const char *path, const smelt_open_options *options, smelt_model **model,
                                        smelt_error *error);

/* The same of a file's bytes in memory, at an address that is a multiple of 64. They must stay as long as the model. */
SMELT_API smelt_status smelt_model_from_memory(const void *data, size_t size, const smelt_open_options *options,
                                               smelt_model **model, smelt_error *error);

/* The memory goes once all its sessions are freed too. NULL is allowed. */
SMELT_API void smelt_model_close(smelt_model *model);

SMELT_API const char *smelt_model_name(const smelt_model *model);

/* What the code that was chosen is for: "aarch64", "x86-64 avx2 fma", "cuda sm_90". */
SMELT_API const char *smelt_model_target(const smelt_model *model);

/* JSON: how Python's arguments and results are made of inputs and outputs, and where the model comes from. Not ended by a
   zero byte. */
SMELT_API const char *smelt_model_manifest(const smelt_model *model, size_t *size);

/* A dimension: its size is from `low` to `high`. Dimensions of inputs with one name have one size; name is NULL where a
   dimension has none. */
typedef struct {
    int64_t low, high;
    const char *name;
} smelt_dim;

enum {
    SMELT_OPTIONAL = 1, /* an input that may be left out: SMELT_NONE as its dtype */
    SMELT_WRITTEN = 2   /* an input that the model writes */
};

/* What an input, output or state register is. All it points to lives as long as the model. */
typedef struct {
    const char *name;
    smelt_dtype dtype; /* SMELT_NONE: an output that differs from call to call; its rank is 0 then */
    int rank;
    const smelt_dim *dims;
    unsigned flags;
    size_t choice_count; /* an int64 that stands for one of these texts, by its place; others are refused */
    const char *const *choices;
} smelt_info;

SMELT_API size_t smelt_model_input_count(const smelt_model *model);
SMELT_API size_t smelt_model_output_count(const smelt_model *model);
SMELT_API size_t smelt_model_state_count(const smelt_model *model);

/* NULL where there is none of that number. */
SMELT_API const smelt_info *smelt_model_input(const smelt_model *model, size_t number);
SMELT_API const smelt_info *smelt_model_output(const smelt_model *model, size_t number);
SMELT_API const smelt_info *smelt_model_state(const smelt_model *model, size_t number);

/* The number of what has this name; -1: there is none. smelt_model_choice: the place of a text among an input's. */
SMELT_API ptrdiff_t smelt_model_find_input(const smelt_model *model, const char *name);
SMELT_API ptrdiff_t smelt_model_find_output(const smelt_model *model, const char *name);
SMELT_API ptrdiff_t smelt_model_find_state(const smelt_model *model, const char *name);
SMELT_API int64_t smelt_model_choice(const smelt_model *model, size_t input, const char *text);

/* ENTRY POINTS: a file may hold several functions over one set of weights and one state, such as `prefill` and `decode`
   of a language model, which write one cache. smelt_model_input and smelt_model_output describe the first, and a session
   runs the first until smelt_session_choose. Of a file with one function, that has the model's name. */
SMELT_API size_t smelt_model_entry_count(const smelt_model *model);

/* Its name; NULL where there is none of that number. And the number of the one with a name; -1: there is none. */
SMELT_API const char *smelt_model_entry(const smelt_model *model, size_t entry);
SMELT_API ptrdiff_t smelt_model_find_entry(const smelt_model *model, const char *name);

/* As the functions above, of an entry point. */
SMELT_API size_t smelt_entry_input_count(const smelt_model *model, size_t entry);
SMELT_API size_t smelt_entry_output_count(const smelt_model *model, size_t entry);
SMELT_API const smelt_info *smelt_entry_input(const smelt_model *model, size_t entry, size_t number);
SMELT_API const smelt_info *smelt_entry_output(const smelt_model *model, size_t entry, size_t number);
SMELT_API ptrdiff_t smelt_entry_find_input(const smelt_model *model, size_t entry, const char *name);
SMELT_API ptrdiff_t smelt_entry_find_output(const smelt_model *model, size_t entry, const char *name);

/* --- sessions -------------------------------------------------------------------------------------------- */

typedef struct smelt_session smelt_session;

/* task(data, 0), …, task(data, count - 1), in any order on any threads; it returns once all have. */
typedef void (*smelt_task)(void *data, int64_t number);
typedef void (*smelt_parallel_for_function)(void *context, int64_t count, smelt_task task, void *data);

typedef struct {
    size_t size;         /* sizeof(smelt_session_options) */
    int threads;         /* that a call uses, the caller's included; 0: as many as there are processors */
    int64_t most_states; /* that a call may go through, so that no loop runs for ever; 0: any number */
    smelt_parallel_for_function parallel_for; /* NULL: threads of the session's own, started when they are needed */
    void *parallel_context;
} smelt_session_options;

/* `options` may be NULL. */
SMELT_API smelt_status smelt_session_new(smelt_model *model, const smelt_session_options *options,
                                         smelt_session **session, smelt_error *error);

/* Its threads have ended when this returns. In a child of fork() a session works on with the calling thread alone. */
SMELT_API void smelt_session_free(smelt_session *session);

SMELT_API smelt_model *smelt_session_model(const smelt_session *session);

/* The entry point that smelt_run runs from now on, and that smelt_output, smelt_bind_output and smelt_returned are about.
   It costs nothing. State is that of all entry points; outputs stay until the next call of the one that returned them. */
SMELT_API smelt_status smelt_session_choose(smelt_session *session, size_t entry, smelt_error *error);

/* One call of the model: all inputs in their order. A session runs one call at a time; a second one meanwhile is
   refused. A call that fails leaves the state unchanged. */
SMELT_API smelt_status smelt_run(smelt_session *session, const smelt_tensor *inputs, size_t count, smelt_error *error);

/* An output of the last call, contiguous, in memory of the host that the session keeps until the next one. dtype
   SMELT_NONE: the model returned None there. */
SMELT_API smelt_status smelt_output(const smelt_session *session, size_t number, smelt_tensor *output,
                                    smelt_error *error);

/* From now on this output is written to memory of the caller's, which must have `bytes` bytes or more; a larger output is
   an error of smelt_run. NULL: no longer. Where the model runs on a GPU it may be memory of that GPU. */
SMELT_API smelt_status smelt_bind_output(smelt_session *session, size_t number, void *data, size_t bytes,
                                         smelt_error *error);

/* profile(context, kernel, begin, end): after each kernel of a call, on the caller's thread; times are nanoseconds of the
   system's clock. On a GPU each kernel is waited for. NULL: no longer; a session that is not measured pays nothing. */
typedef void (*smelt_profile_function)(void *context, const char *kernel, int64_t begin, int64_t end);
SMELT_API smelt_status smelt_session_profile(smelt_session *session, smelt_profile_function profile, void *context,
                                             smelt_error *error);

/* Where the last call ended: the numbers of a state and of its variant, which the manifest may say more about. */
SMELT_API smelt_status smelt_returned(const smelt_session *session, int64_t *state, int64_t *variant,
                                      smelt_error *error);

/* --- state ----------------------------------------------------------------------------------------------- */

/* A state register where it is: the session's own memory, to be read and written between calls. Refused where that is
   memory of a GPU: smelt_state_read and smelt_state_write copy it. */
SMELT_API smelt_status smelt_state(smelt_session *session, size_t number, smelt_tensor *state, smelt_error *error);

/* Its elements, contiguous, to or from memory of `bytes` bytes, which must be their size. */
SMELT_API smelt_status smelt_state_read(smelt_session *session, size_t number, void *data, size_t bytes,
                                        smelt_error *error);
SMELT_API smelt_status smelt_state_write(smelt_session *session, size_t number, const void *data, size_t bytes,
                                         smelt_error *error);

/* Back to what the file holds. */
SMELT_API smelt_status smelt_session_reset(smelt_session *session, smelt_error *error);

/* A file of the same model with the session's state in it: a checkpoint, which smelt_model_open, smelt_session_load and
   Python read. It is there as a whole or not at all; what is no file, such as a pipe or a device, is not replaced. It is
   not signed. */
SMELT_API smelt_status smelt_session_save(smelt_session *session, const char *path, smelt_error *error);

/* Takes over the state of such a file; by the registers' names, all of which must be there with the same shapes. Nothing of
   it is executed, and it need not be signed. */
SMELT_API smelt_status smelt_session_load(smelt_session *session, const char *path, smelt_error *error);

#ifdef __cplusplus
}
#endif

#endif
