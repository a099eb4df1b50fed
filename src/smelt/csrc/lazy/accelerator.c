/* Which device PyTorch treats as the accelerator of a process that has a GPU and a device of our own.

   PyTorch has one accelerator, and prefers a device with a name (PrivateUse1) to any other. Its autograd engine then
   has no streams for tensors of the GPU and fails an assertion in their backward, while it asks every tensor of either
   device for a stream. So two functions answer libtorch_cpu differently: no such device is registered, and it is no
   accelerator. The GPU stays the accelerator, and tensors of our device need no streams, like those of the CPU.

   The two functions are replaced in the library's table of addresses (cross-library, or exported), through which it
   calls them. Nothing else in the process sees the difference: the device keeps its name. */
#include "lazy/accelerator.h"

#if defined(__linux__) && defined(__LP64__)
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IS_REGISTERED "_ZN3c1033is_privateuse1_backend_registeredEv"
#define IS_ACCELERATOR "_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE"

enum { PRIVATE_USE_1 = 20 }; /* c10::DeviceType */

static bool (*is_accelerator)(int8_t device_type);

static bool
never_registered(void)
{
    return false;
}

static bool
is_other_accelerator(int8_t device_type)
{
    return device_type != PRIVATE_USE_1 && is_accelerator(device_type);
}

typedef struct {
    ElfW(Addr) base;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *tables[2];
    size_t lengths[2];
    ElfW(Addr) protected_from, protected_to;
    void **registered_slot, **accelerator_slot;
} Library;

/* The address in a dynamic section: absolute with glibc, relative to the library elsewhere. */
static const void *
absolute(const Library *library, ElfW(Addr) address)
{
    return (const void *)(address < library->base ? address + library->base : address);
}

static void
find_slots(Library *library)
{
    for (int which = 0; which < 2; which++) {
        for (size_t place = 0; place < library->lengths[which]; place++) {
            const ElfW(Rela) *entry = &library->tables[which][place];
            const ElfW(Sym) *symbol = &library->symbols[ELF64_R_SYM(entry->r_info)];
            const char *name = library->names + symbol->st_name;
            void **slot = (void **)(library->base + entry->r_offset);
            if (!strcmp(name, IS_REGISTERED)) {
                library->registered_slot = slot;
            } else if (!strcmp(name, IS_ACCELERATOR) && symbol->st_shndx != SHN_UNDEF) {
                library->accelerator_slot = slot;
                is_accelerator = (bool (*)(int8_t))(library->base + symbol->st_value);
            }
        }
    }
}

static int
visit(struct dl_phdr_info *info, size_t size, void *result)
{
    (void)size;
    const char *file = strrchr(info->dlpi_name, '/');
    if (strcmp(file ? file + 1 : info->dlpi_name, "libtorch_cpu.so")) {
        return 0;
    }
    Library *library = result;
    library->base = info->dlpi_addr;
    const ElfW(Dyn) *dynamic = NULL;
    for (int place = 0; place < info->dlpi_phnum; place++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[place];
        if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)(library->base + header->p_vaddr);
        } else if (header->p_type == PT_GNU_RELRO) {
            library->protected_from = library->base + header->p_vaddr;
            library->protected_to = library->protected_from + header->p_memsz;
        }
    }
    bool has_addends = false;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: library->symbols = absolute(library, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: library->names = absolute(library, dynamic->d_un.d_ptr); break;
        case DT_JMPREL: library->tables[0] = absolute(library, dynamic->d_un.d_ptr); break;
        case DT_PLTRELSZ: library->lengths[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_RELA: library->tables[1] = absolute(library, dynamic->d_un.d_ptr); break;
        case DT_RELASZ: library->lengths[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_RELAENT: has_addends = dynamic->d_un.d_val == sizeof(ElfW(Rela)); break;
        default: break;
        }
    }
    for (int which = 0; which < 2; which++) {
        if (library->tables[which] == NULL) {
            library->lengths[which] = 0;
        }
    }
    if (has_addends && library->symbols && library->names) {
        find_slots(library);
    }
    return 1;
}

/* Write an entry of the table. The loader makes the table read-only where it has bound all of it. */
static bool
replace(const Library *library, void **slot, void *function)
{
    ElfW(Addr) address = (ElfW(Addr))slot;
    bool is_protected = address >= library->protected_from && address < library->protected_to;
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(address & ~(ElfW(Addr))(bytes - 1));
    if (is_protected && mprotect(page, bytes, PROT_READ | PROT_WRITE)) {
        return false;
    }
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    if (is_protected) {
        mprotect(page, bytes, PROT_READ);
    }
    return true;
}

static bool
leave(void)
{
    Library library = {0};
    dl_iterate_phdr(visit, &library);
    return library.registered_slot && library.accelerator_slot &&
           replace(&library, library.accelerator_slot, (void *)is_other_accelerator) &&
           replace(&library, library.registered_slot, (void *)never_registered);
}
#else
static bool
leave(void)
{
    return false;
}
#endif

PyObject *
leave_accelerator(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(leave());
}
