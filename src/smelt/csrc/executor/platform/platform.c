/* Memory, files, threads and libraries on POSIX systems: Linux with glibc, musl or Bionic, and macOS. */
#define _GNU_SOURCE
#include "executor/platform/platform.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

SystemProblem
smelt_system_problem(void)
{
    SystemProblem problem;
    snprintf(problem.text, sizeof problem.text, "%s", strerror(errno));
    return problem;
}

/* --- memory ------------------------------------------------------------------------------------------------ */

void *
smelt_aligned_new(size_t size, size_t alignment)
{
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof memory ? sizeof memory : alignment, size) ? NULL : memory;
}

void
smelt_aligned_free(void *memory)
{
    free(memory);
}

size_t
smelt_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

char *
smelt_code_pages_new(size_t bytes)
{
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

bool
smelt_code_pages_seal(char *pages, size_t bytes)
{
    if (mprotect(pages, bytes, PROT_READ | PROT_EXEC) < 0) {
        return false;
    }
    __builtin___clear_cache(pages, pages + bytes);
    return true;
}

void
smelt_code_pages_free(char *pages, size_t bytes)
{
    munmap(pages, bytes);
}

void
smelt_commit_stack(void)
{
    /* The system enlarges a stack wherever it is touched. */
}

/* --- files ------------------------------------------------------------------------------------------------- */

int
smelt_file_descriptor(const char *path, int64_t *bytes)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe would wait for its writer */
    struct stat status;
    if (descriptor >= 0 && fstat(descriptor, &status) < 0) {
        const int why = errno;
        close(descriptor);
        errno = why;
        return -1;
    }
    *bytes = descriptor >= 0 && S_ISREG(status.st_mode) ? (int64_t)status.st_size : -1;
    return descriptor;
}

static bool
read_all(int descriptor, char *data, size_t bytes)
{
    for (size_t end = 0; end < bytes;) {
        const ssize_t count = pread(descriptor, data + end, bytes - end, (off_t)end);
        if (count <= 0 && !(count < 0 && errno == EINTR)) {
            errno = count ? errno : EIO; /* it has become shorter */
            return false;
        }
        end += count < 0 ? 0 : (size_t)count;
    }
    return true;
}

char *
smelt_file_copy_new(int descriptor, size_t bytes)
{
    char *copy = smelt_code_pages_new(bytes);
    if (copy && (!read_all(descriptor, copy, bytes) || mprotect(copy, bytes, PROT_READ) < 0)) {
        const int why = errno;
        smelt_code_pages_free(copy, bytes);
        errno = why;
        return NULL;
    }
    return copy;
}

void
smelt_descriptor_close(int descriptor)
{
    close(descriptor);
}

size_t
smelt_map_granularity(void)
{
    return smelt_page_bytes();
}

void *
smelt_map_new(int descriptor, int64_t offset, size_t bytes, bool writable)
{
    void *map = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_PRIVATE, descriptor, (off_t)offset);
    return map == MAP_FAILED ? NULL : map;
}

void
smelt_map_free(void *map, size_t bytes)
{
    munmap(map, bytes);
}

void
smelt_map_forget(char *begin, size_t bytes)
{
    (void)madvise(begin, bytes, MADV_DONTNEED);
}

bool
smelt_descriptor_write(int descriptor, const char *data, size_t bytes)
{
    while (bytes) {
        const ssize_t written = write(descriptor, data, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return false;
        }
        data += written;
        bytes -= (size_t)written;
    }
    return true;
}

/* A file that is being written, in the folder of the file that it replaces. Until it is complete it has no name, so a process
   that is killed leaves nothing behind. On a system that cannot do this, it is named `path` from the beginning. `path`
   is unique, and short enough for any folder whose name is not too long itself. */
typedef struct {
    int descriptor;
    bool is_named;
    char path[PATH_MAX + 32];
} Unfinished;

/* That no other thread or process draws now. */
static uint64_t
draw_number(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t moment = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return (moment * UINT64_C(0x9E3779B97F4A7C15)) ^ (uint64_t)(uintptr_t)&now ^ (uint64_t)getpid() << 40;
}

static bool
open_unfinished(const char *target, Unfinished *unfinished)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", target);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        memcpy(folder, ".", sizeof ".");
    }
    else {
        slash[slash == folder] = '\0';
    }
    snprintf(unfinished->path, sizeof unfinished->path, "%s/.%016llx", folder,
             (unsigned long long)draw_number());
    unfinished->descriptor = -1;
#if defined(O_TMPFILE)
    unfinished->descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
#endif
    unfinished->is_named = unfinished->descriptor < 0;
    if (unfinished->is_named) {
        unfinished->descriptor = open(unfinished->path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    }
    return unfinished->descriptor >= 0;
}

/* The file takes the place of `target`. */
static bool
finish(const Unfinished *unfinished, const char *target)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", unfinished->descriptor);
    return (unfinished->is_named || linkat(AT_FDCWD, link, AT_FDCWD, unfinished->path, AT_SYMLINK_FOLLOW) == 0)
           && rename(unfinished->path, target) == 0;
}

static bool
refuse(SystemProblem *problem, const char *why)
{
    snprintf(problem->text, sizeof problem->text, "%s", why);
    return false;
}

bool
smelt_file_replace(const char *path, smelt_file_writer write, const void *context, SystemProblem *problem)
{
    char target[PATH_MAX];
    Unfinished unfinished;
    struct stat before;
    if (realpath(path, target) == NULL && snprintf(target, sizeof target, "%s", path) >= (int)sizeof target) {
        return refuse(problem, "the path is too long");
    }
    const bool replaces = lstat(target, &before) == 0;
    if (replaces && !S_ISREG(before.st_mode)) {
        return refuse(problem, S_ISLNK(before.st_mode) ? "it is a link that leads nowhere" : "it is no file");
    }
    if (!open_unfinished(target, &unfinished)) {
        *problem = smelt_system_problem();
        return false;
    }
    const bool done = write(unfinished.descriptor, context) && fsync(unfinished.descriptor) == 0
                      && (!replaces || fchmod(unfinished.descriptor, before.st_mode & 07777) == 0)
                      && finish(&unfinished, target);
    *problem = smelt_system_problem();
    close(unfinished.descriptor); /* it is on the disk: fsync has waited for it */
    if (!done) {
        unlink(unfinished.path);
    }
    return done;
}

/* --- threads ----------------------------------------------------------------------------------------------- */

bool
smelt_thread_start(pthread_t *thread, void *(*work)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, NULL, work, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int64_t
smelt_system_processors(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
#endif
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count;
}

/* --- libraries --------------------------------------------------------------------------------------------- */

void *
smelt_library_open(const char *name, bool loaded_only)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0));
}

const char *
smelt_library_problem(const char *name)
{
    const char *reason = dlerror();
    return reason ? reason : name;
}

void *
smelt_library_function(void *library, const char *name)
{
    return dlsym(library, name);
}

void
smelt_library_close(void *library)
{
    dlclose(library);
}
#endif
