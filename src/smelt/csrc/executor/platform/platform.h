/* What differs between operating systems: memory, files, threads, libraries, and how functions are called.

   platform.c has the functions for Linux, macOS and other POSIX systems, windows.c those for Windows. Paths are UTF-8. A function that fails leaves a reason for smelt_system_problem. */
#ifndef SMELT_EXECUTOR_PLATFORM_H
#define SMELT_EXECUTOR_PLATFORM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* x86-64 code of an artifact follows the calling convention of System V on every system, so that one file runs on all of
   them. Functions that it calls and functions of it are declared with this. On other processors systems agree. */
#if defined(_WIN32) && defined(__x86_64__)
#define GENERATED_CODE __attribute__((sysv_abi))
#else
#define GENERATED_CODE
#endif

#if defined(_WIN32)
#define CUDA_DRIVER_NAME "nvcuda.dll"
#define CUBLAS_NAMES "cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"
#else
#define CUDA_DRIVER_NAME "libcuda.so.1"
#define CUBLAS_NAMES "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"
#endif

/* Why the last of these functions failed in this thread. */
typedef struct {
    char text[128];
} SystemProblem;
SystemProblem smelt_system_problem(void);

/* `alignment` is a power of two. */
void *smelt_aligned_new(size_t size, size_t alignment);
void smelt_aligned_free(void *memory);

/* Whole pages, zero at first; smelt_code_pages_seal makes them executable and read-only. */
size_t smelt_page_bytes(void);
char *smelt_code_pages_new(size_t bytes);
bool smelt_code_pages_seal(char *pages, size_t bytes);
void smelt_code_pages_free(char *pages, size_t bytes);

/* Generated code does not touch the pages of its stack one by one, as Windows wants it: this does, before it is called. */
void smelt_commit_stack(void);

/* Opens a regular file for reading; -1 if that fails. `bytes`: its size, -1 if it is not a regular file. */
int smelt_file_descriptor(const char *path, int64_t *bytes);
void smelt_descriptor_close(int descriptor);

/* A copy of the first bytes of a file that nobody can write; smelt_code_pages_free frees it. */
char *smelt_file_copy_new(int descriptor, size_t bytes);

/* A private mapping: what is written to it is not written to the file. Its offset is a multiple of
   smelt_map_granularity(). */
size_t smelt_map_granularity(void);
void *smelt_map_new(int descriptor, int64_t offset, size_t bytes, bool writable);
void smelt_map_free(void *map, size_t bytes);

/* Lets go of pages that were read; they are read again when they are needed. It is only a saving. */
void smelt_map_forget(char *begin, size_t bytes);

/* Writes a file of that name, which replaces an earlier one as a whole or not at all. `write` writes its bytes by
   smelt_descriptor_write. The file that a symbolic link leads to is replaced, not the link; a file that is replaced keeps
   its mode. What is no file, such as a device, is not replaced. */
typedef bool (*smelt_file_writer)(int descriptor, const void *context);
bool smelt_file_replace(const char *path, smelt_file_writer write, const void *context, SystemProblem *problem);
bool smelt_descriptor_write(int descriptor, const char *data, size_t bytes);

/* A thread that gets no signals: those are for the program's own threads. */
bool smelt_thread_start(pthread_t *thread, void *(*work)(void *), void *argument);

/* How many processors this process may use; at least 1. */
int64_t smelt_system_processors(void);

/* NULL: it cannot be opened. `loaded_only`: unless the process has it already. */
void *smelt_library_open(const char *name, bool loaded_only);
const char *smelt_library_problem(const char *name); /* why the last one could not be opened */
void *smelt_library_function(void *library, const char *name);
void smelt_library_close(void *library);

#endif
