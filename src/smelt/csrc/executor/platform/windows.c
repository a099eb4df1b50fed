/* Memory, files, threads and libraries on Windows. Descriptors are those of the C library. */
#define WIN32_LEAN_AND_MEAN
#include "executor/platform/platform.h"

#if defined(_WIN32)
#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PATH = 4096, STACK_BYTES = 128 * 1024 }; /* a kernel needs some kilobytes */

SystemProblem
smelt_system_problem(void)
{
    SystemProblem problem;
    const DWORD code = GetLastError();
    const DWORD flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK;
    DWORD length = FormatMessageA(flags, NULL, code, 0, problem.text, sizeof problem.text, NULL);
    if (length == 0) {
        snprintf(problem.text, sizeof problem.text, "error %lu of Windows", code);
    }
    for (; length && strchr(" .\r\n", problem.text[length - 1]); length--) {
        problem.text[length - 1] = '\0';
    }
    return problem;
}

/* --- memory ------------------------------------------------------------------------------------------------ */

void *
smelt_aligned_new(size_t size, size_t alignment)
{
    return _aligned_malloc(size ? size : 1, alignment);
}

void
smelt_aligned_free(void *memory)
{
    _aligned_free(memory);
}

static SYSTEM_INFO
system_info(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info;
}

size_t
smelt_page_bytes(void)
{
    return system_info().dwPageSize;
}

char *
smelt_code_pages_new(size_t bytes)
{
    return VirtualAlloc(NULL, bytes, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE);
}

bool
smelt_code_pages_seal(char *pages, size_t bytes)
{
    DWORD before;
    return VirtualProtect(pages, bytes, PAGE_EXECUTE_READ, &before)
           && FlushInstructionCache(GetCurrentProcess(), pages, bytes);
}

void
smelt_code_pages_free(char *pages, size_t bytes)
{
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}

/* The compiler touches the pages of a large variable. */
__attribute__((noinline)) void
smelt_commit_stack(void)
{
    volatile char room[STACK_BYTES];
    room[0] = 0;
}

/* --- files ------------------------------------------------------------------------------------------------- */

static bool
widen(const char *path, wchar_t *wide)
{
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, MOST_PATH) > 0;
}

int
smelt_file_descriptor(const char *path, int64_t *bytes)
{
    wchar_t wide[MOST_PATH];
    if (!widen(path, wide)) {
        return -1;
    }
    const DWORD sharing = FILE_SHARE_READ | FILE_SHARE_DELETE;
    const DWORD folders_too = FILE_FLAG_BACKUP_SEMANTICS;
    HANDLE file = CreateFileW(wide, GENERIC_READ, sharing, NULL, OPEN_EXISTING, folders_too, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        return -1;
    }
    LARGE_INTEGER size;
    BY_HANDLE_FILE_INFORMATION info;
    const bool is_file = GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &info)
                         && !(info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY);
    *bytes = is_file && GetFileSizeEx(file, &size) ? size.QuadPart : -1;
    const int descriptor = _open_osfhandle((intptr_t)file, _O_RDONLY | _O_BINARY);
    if (descriptor < 0) {
        CloseHandle(file);
        SetLastError(ERROR_TOO_MANY_OPEN_FILES);
    }
    return descriptor;
}

char *
smelt_file_copy_new(int descriptor, size_t bytes)
{
    HANDLE file = (HANDLE)_get_osfhandle(descriptor);
    char *copy = smelt_code_pages_new(bytes);
    DWORD before;
    bool failed = copy == NULL;
    for (size_t end = 0; !failed && end < bytes;) {
        OVERLAPPED place = {.Offset = (DWORD)end, .OffsetHigh = (DWORD)((uint64_t)end >> 32)};
        const DWORD part = bytes - end < (1u << 30) ? (DWORD)(bytes - end) : 1u << 30;
        DWORD count = 0;
        failed = !ReadFile(file, copy + end, part, &count, &place) || count == 0;
        end += count;
    }
    if (copy && (failed || !VirtualProtect(copy, bytes, PAGE_READONLY, &before))) {
        const DWORD why = GetLastError();
        smelt_code_pages_free(copy, bytes);
        SetLastError(why);
        return NULL;
    }
    return copy;
}

void
smelt_descriptor_close(int descriptor)
{
    _close(descriptor);
}

size_t
smelt_map_granularity(void)
{
    return system_info().dwAllocationGranularity;
}

void *
smelt_map_new(int descriptor, int64_t offset, size_t bytes, bool writable)
{
    HANDLE file = (HANDLE)_get_osfhandle(descriptor);
    HANDLE mapping = CreateFileMappingW(file, NULL, writable ? PAGE_WRITECOPY : PAGE_READONLY, 0, 0, NULL);
    if (mapping == NULL) {
        return NULL;
    }
    const DWORD access = writable ? FILE_MAP_COPY : FILE_MAP_READ;
    void *map = MapViewOfFile(mapping, access, (DWORD)(offset >> 32), (DWORD)offset, bytes);
    const DWORD why = GetLastError();
    CloseHandle(mapping); /* the view keeps it */
    SetLastError(why);
    return map;
}

void
smelt_map_free(void *map, size_t bytes)
{
    (void)bytes;
    UnmapViewOfFile(map);
}

void
smelt_map_forget(char *begin, size_t bytes)
{
    (void)begin, (void)bytes;
}

bool
smelt_descriptor_write(int descriptor, const char *data, size_t bytes)
{
    HANDLE file = (HANDLE)_get_osfhandle(descriptor);
    while (bytes) {
        DWORD written;
        const DWORD part = bytes < (1u << 30) ? (DWORD)bytes : 1u << 30;
        if (!WriteFile(file, data, part, &written, NULL) || written == 0) {
            return false;
        }
        data += written;
        bytes -= written;
    }
    return true;
}

static bool
write_new(const wchar_t *path, smelt_file_writer write, const void *context)
{
    HANDLE file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        return false;
    }
    const int descriptor = _open_osfhandle((intptr_t)file, _O_BINARY);
    if (descriptor < 0) {
        CloseHandle(file);
        SetLastError(ERROR_TOO_MANY_OPEN_FILES);
        return false;
    }
    const bool done = write(descriptor, context) && FlushFileBuffers(file);
    const DWORD why = GetLastError();
    _close(descriptor);
    SetLastError(why);
    return done;
}

bool
smelt_file_replace(const char *path, smelt_file_writer write, const void *context, SystemProblem *problem)
{
    wchar_t target[MOST_PATH], unfinished[MOST_PATH + 64];
    bool done = widen(path, target);
    if (done) {
        const DWORD attributes = GetFileAttributesW(target);
        if (attributes != INVALID_FILE_ATTRIBUTES && attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE)) {
            snprintf(problem->text, sizeof problem->text, "it is no file");
            return false;
        }
        swprintf(unfinished, MOST_PATH + 64, L"%ls.%lx-%lx-%llx", target, GetCurrentProcessId(),
                 GetCurrentThreadId(), (unsigned long long)GetTickCount64());
        done = write_new(unfinished, write, context)
               && MoveFileExW(unfinished, target, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
        if (!done) {
            const DWORD why = GetLastError();
            DeleteFileW(unfinished);
            SetLastError(why);
        }
    }
    *problem = smelt_system_problem();
    return done;
}

/* --- threads ----------------------------------------------------------------------------------------------- */

bool
smelt_thread_start(pthread_t *thread, void *(*work)(void *), void *argument)
{
    return pthread_create(thread, NULL, work, argument) == 0;
}

int64_t
smelt_system_processors(void)
{
    DWORD_PTR own = 0, all;
    if (GetProcessAffinityMask(GetCurrentProcess(), &own, &all) && own) {
        return __builtin_popcountll(own);
    }
    return system_info().dwNumberOfProcessors;
}

/* --- libraries --------------------------------------------------------------------------------------------- */

void *
smelt_library_open(const char *name, bool loaded_only)
{
    HMODULE module = NULL;
    if (loaded_only) {
        return GetModuleHandleExA(0, name, &module) ? (void *)module : NULL;
    }
    return (void *)LoadLibraryA(name);
}

const char *
smelt_library_problem(const char *name)
{
    return name; /* it is nowhere that Windows looks */
}

void *
smelt_library_function(void *library, const char *name)
{
    return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

void
smelt_library_close(void *library)
{
    FreeLibrary((HMODULE)library);
}
#endif
