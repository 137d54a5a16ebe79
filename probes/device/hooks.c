/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "window.h"

#if defined(__x86_64__)
enum { SLOT_JUMP = R_X86_64_JUMP_SLOT, SLOT_GLOBAL = R_X86_64_GLOB_DAT, SLOT_ADDRESS = R_X86_64_64 };
#else
enum { SLOT_JUMP = R_AARCH64_JUMP_SLOT, SLOT_GLOBAL = R_AARCH64_GLOB_DAT, SLOT_ADDRESS = R_AARCH64_ABS64 };
#endif

enum call { SUBSCRIBE, UNSUBSCRIBE, REGISTER, ENABLE, DISABLE, FINALIZE };

static const struct {
    const char *name;
    enum call call;
} wanted[] = {
    {"cuptiSubscribe", SUBSCRIBE},
    {"cuptiSubscribe_v2", SUBSCRIBE},
    {"cuptiUnsubscribe", UNSUBSCRIBE},
    {"cuptiActivityRegisterCallbacks", REGISTER},
    {"cuptiActivityRegisterCallbacks_v2", REGISTER},
    {"cuptiActivityEnable", ENABLE},
    {"cuptiActivityEnable_v2", ENABLE},
    {"cuptiActivityEnableContext", ENABLE},
    {"cuptiActivityEnableAndDump", ENABLE},
    {"cuptiActivityDisable", DISABLE},
    {"cuptiActivityDisable_v2", DISABLE},
    {"cuptiActivityDisableContext", DISABLE},
    {"cuptiFinalize", FINALIZE},
};
enum { WANTED = sizeof wanted / sizeof *wanted };

volatile bool hooks_pass;

static volatile u64 last_ms;

u64 hooks_last_ms(void)
{
    return last_ms;
}

/* ---- what the others have, under the window lock ---- */

static int subscriptions;
static u64 enabled_kinds[4]; /* bits */

bool hooks_foreign(void)
{
    return subscriptions > 0 || enabled_kinds[0] || enabled_kinds[1] || enabled_kinds[2] || enabled_kinds[3];
}

static void account(int which, long first_argument, long second_argument)
{
    /* The _v2 forms and the ones for a context have the kind second. */
    bool second = strstr(wanted[which].name, "_v2") || strstr(wanted[which].name, "Context");
    unsigned long kind = (unsigned long)(second ? second_argument : first_argument) & 255;
    switch (wanted[which].call) {
    case SUBSCRIBE:
        subscriptions++;
        break;
    case UNSUBSCRIBE:
        subscriptions -= subscriptions > 0;
        break;
    case ENABLE:
        enabled_kinds[kind / 64] |= 1ull << kind % 64;
        break;
    case DISABLE:
        enabled_kinds[kind / 64] &= ~(1ull << kind % 64);
        break;
    case FINALIZE:
        subscriptions = 0;
        memset(enabled_kinds, 0, sizeof enabled_kinds);
        break;
    case REGISTER:
        break;
    }
}

/* ---- the calls ---- */

typedef int (*function)(long, long, long, long, long, long);
enum { STUBS = 64 };
static struct {
    function target;
    int wanted;
} stubs[STUBS];
static int stub_count;
static pthread_mutex_t stubs_lock = PTHREAD_MUTEX_INITIALIZER;

static int through(int stub, long a, long b, long c, long d, long e, long f)
{
    function target = stubs[stub].target;
    enum call call = wanted[stubs[stub].wanted].call;
    if (hooks_pass || !hooks_enter(call == SUBSCRIBE || call == REGISTER || call == ENABLE))
        return target(a, b, c, d, e, f);
    int result = target(a, b, c, d, e, f);
    if (result == 0)
        account(stubs[stub].wanted, a, b);
    last_ms = now_ms();
    hooks_leave();
    return result;
}

#define STUB(n) \
    static int stub_##n(long a, long b, long c, long d, long e, long f) { return through(n, a, b, c, d, e, f); }
#define EIGHT(M, t) M(t##0) M(t##1) M(t##2) M(t##3) M(t##4) M(t##5) M(t##6) M(t##7)
#define ALL(M) EIGHT(M, 00) EIGHT(M, 01) EIGHT(M, 02) EIGHT(M, 03) EIGHT(M, 04) EIGHT(M, 05) EIGHT(M, 06) EIGHT(M, 07)
ALL(STUB) /* the numbers are octal */
#define STUB_NAME(n) stub_##n,
static const function stub_functions[STUBS] = {ALL(STUB_NAME)};

/* What to call in place of `target`; `target` itself when it is one already, or there is no room. */
static void *stub_of(int which, void *target)
{
    int stub = 0;
    pthread_mutex_lock(&stubs_lock);
    while (stub < stub_count && (void *)stubs[stub].target != target && (void *)stub_functions[stub] != target)
        stub++;
    if (stub == stub_count && stub < STUBS) {
        stubs[stub].wanted = which;
        stubs[stub].target = (function)target;
        stub_count++;
    }
    pthread_mutex_unlock(&stubs_lock);
    return stub < STUBS ? (void *)stub_functions[stub] : target;
}

static int index_of(const char *name)
{
    if (strncmp(name, "cupti", 5) != 0)
        return -1;
    for (int i = 0; i < WANTED; i++)
        if (strcmp(name, wanted[i].name) == 0)
            return i;
    return -1;
}

typedef void *(*dlsym_function)(void *, const char *);
static dlsym_function real_dlsym;

/* Where RTLD_NEXT and RTLD_DEFAULT search depends on the caller, which dlsym knows by its return address: the last call
 * is a jump. */
static void *hooked_dlsym(void *handle, const char *name)
{
    int which = name && handle != RTLD_NEXT && !hooks_pass ? index_of(name) : -1;
    void *found = which >= 0 ? real_dlsym(handle, name) : NULL;
    if (found)
        return stub_of(which, found);
    return real_dlsym(handle, name);
}

typedef void *(*dlopen_function)(const char *, int);
static dlopen_function real_dlopen;

/* A module that is being loaded could begin before its slots are seen to, so an open window ends, and nothing of earlier
 * ones is left. A jump at the end here too: where dlopen searches depends on its caller. */
static void *hooked_dlopen(const char *path, int flags)
{
    if (path && !hooks_pass && window_left_something() && !(flags & RTLD_NOLOAD)) {
        void *loaded = real_dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (loaded)
            dlclose(loaded);
        else if (hooks_enter(true))
            hooks_leave();
    }
    return real_dlopen(path, flags);
}

/* ---- import slots ---- */

struct module {
    ElfW(Addr) base;
    const ElfW(Phdr) * headers;
    int header_count;
    char path[PATH_MAX];
};

struct modules {
    struct module *list;
    int count, room;
    unsigned long long added;
};

static ElfW(Addr) own_base; /* of this library, whose own calls are its own */

static int note_module(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct modules *modules = data;
    modules->added = info->dlpi_adds;
    if (modules->count == modules->room)
        return 0;
    struct module *module = &modules->list[modules->count++];
    *module = (struct module){.base = info->dlpi_addr, .headers = info->dlpi_phdr, .header_count = info->dlpi_phnum};
    snprintf(module->path, sizeof module->path, "%s", info->dlpi_name ? info->dlpi_name : "");
    return 0;
}

static int note_count(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct modules *modules = data;
    modules->added = info->dlpi_adds;
    modules->room++;
    return 0;
}

static bool left_alone(const struct module *module)
{
    static const char *const names[] = {"libcupti.so", "libcuda.so", "libc.so", "libdl.so", "libpthread.so",
                                        "ld-linux", "linux-vdso", "linux-gate", "libnvidia-"};
    const char *base = strrchr(module->path, '/');
    base = base ? base + 1 : module->path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(base, names[i], strlen(names[i])) == 0)
            return true;
    return module->base == own_base;
}

/* Slots that the loader has made read-only after relocation are opened for the moment of the write. It does that to
 * whole pages: the last one, where RELRO ends within it, stays writable, and data that the program writes lies there. */
static void write_slot(const struct module *module, void **slot, void *value)
{
    if (*slot == value)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), whole = ~(page - 1), at = (uintptr_t)slot & whole;
    bool read_only = false, data = false;
    for (int i = 0; i < module->header_count; i++) {
        const ElfW(Phdr) *header = &module->headers[i];
        uintptr_t start = module->base + header->p_vaddr, end = start + header->p_memsz;
        if (header->p_type == PT_GNU_RELRO && at >= (start & whole) && at < (end & whole))
            read_only = true;
        if (header->p_type == PT_LOAD && header->p_flags & PF_W && (uintptr_t)slot >= start && (uintptr_t)slot < end)
            data = true;
    }
    if (!data) /* in code */
        return;
    if (read_only && mprotect((void *)at, page, PROT_READ | PROT_WRITE) != 0)
        return;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (read_only)
        mprotect((void *)at, page, PROT_READ);
}

static const void *at_address(const struct module *module, ElfW(Addr) address)
{
    return (const void *)(address < module->base ? module->base + address : address);
}

/* What a slot leads to, or would when it is first used. */
static void *target_of(void *handle, void *const *slot, const char *name)
{
    Dl_info info;
    void *now = *slot;
    if (now && dladdr(now, &info) && info.dli_fname && strstr(info.dli_fname, "libcupti"))
        return now;
    void *found = real_dlsym(RTLD_DEFAULT, name);
    return found ? found : real_dlsym(handle, name);
}

static void scan_relocations(const struct module *module, void *handle, const ElfW(Rela) * relocations, size_t bytes,
                             const ElfW(Sym) * symbols, const char *strings)
{
    for (size_t i = 0; i < bytes / sizeof *relocations; i++) {
        unsigned long type = ELF64_R_TYPE(relocations[i].r_info);
        if (type != SLOT_JUMP && type != SLOT_GLOBAL && type != SLOT_ADDRESS)
            continue;
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(relocations[i].r_info)];
        if (symbol->st_shndx != SHN_UNDEF || !symbol->st_name)
            continue;
        const char *name = strings + symbol->st_name;
        void **slot = (void **)(module->base + relocations[i].r_offset);
        bool loader = strcmp(name, "dlsym") == 0 || strcmp(name, "dlopen") == 0;
        if (loader && relocations[i].r_addend == 0)
            write_slot(module, slot, strcmp(name, "dlsym") == 0 ? (void *)hooked_dlsym : (void *)hooked_dlopen);
        int which = index_of(name);
        void *target = which >= 0 ? target_of(handle, slot, name) : NULL;
        void *stub = target ? stub_of(which, target) : NULL;
        if (stub && stub != target)
            write_slot(module, slot, stub);
    }
}

static void scan_tables(const struct module *module, void *handle)
{
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < module->header_count; i++)
        if (module->headers[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(module->base + module->headers[i].p_vaddr);
    if (!dynamic)
        return;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) *jumps = NULL, *others = NULL;
    size_t jump_bytes = 0, other_bytes = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++)
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = at_address(module, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: strings = at_address(module, dynamic->d_un.d_ptr); break;
        case DT_JMPREL: jumps = at_address(module, dynamic->d_un.d_ptr); break;
        case DT_PLTRELSZ: jump_bytes = dynamic->d_un.d_val; break;
        case DT_RELA: others = at_address(module, dynamic->d_un.d_ptr); break;
        case DT_RELASZ: other_bytes = dynamic->d_un.d_val; break;
        }
    if (!symbols || !strings)
        return;
    if (jumps)
        scan_relocations(module, handle, jumps, jump_bytes, symbols, strings);
    if (others)
        scan_relocations(module, handle, others, other_bytes, symbols, strings);
}

static void scan(const struct module *module)
{
    /* Kept loaded while it is read; the program itself has no path. */
    void *handle = dlopen(*module->path ? module->path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *map;
    if (!handle)
        return;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_addr == module->base)
        scan_tables(module, handle);
    dlclose(handle);
}

void hooks_scan(void)
{
    static unsigned long long scanned;
    struct modules modules = {0};
    dl_iterate_phdr(note_count, &modules);
    if (modules.added == scanned)
        return;
    if (!real_dlsym) {
        Dl_info info;
        real_dlsym = dlsym;
        real_dlopen = dlopen;
        if (dladdr((void *)hooks_scan, &info))
            own_base = (ElfW(Addr))info.dli_fbase;
    }
    modules.room += 16;
    modules.list = calloc((size_t)modules.room, sizeof *modules.list);
    if (!modules.list)
        return;
    /* Listed first, read after: the loader's lock must not be held while its functions are called. */
    dl_iterate_phdr(note_module, &modules);
    for (int i = 0; i < modules.count; i++)
        if (!left_alone(&modules.list[i]))
            scan(&modules.list[i]);
    free(modules.list);
    scanned = modules.added;
    last_ms = now_ms();
}
