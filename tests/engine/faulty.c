/* Preloaded into a command: reading some files fails, so many times, as from a network file system
 * in trouble. FAULT_PATH is part of the files' names, FAULT_CALL what fails, `read` or, of mapped
 * files, `madvise`; FAULT_ERRNO is the error, FAULT_TIMES how often it comes in each process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_int failed;

static int fails(const char *call, const char *path) {
    const char *wanted = getenv("FAULT_PATH"), *times = getenv("FAULT_TIMES");
    if (!wanted || strcmp(call, getenv("FAULT_CALL")) || !strstr(path, wanted)) return 0;
    if (atomic_fetch_add(&failed, 1) >= atoi(times)) return 0;
    errno = atoi(getenv("FAULT_ERRNO"));
    return 1;
}

/* Whether reading an open file fails. */
static int file_fails(int file) {
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0 && fails("read", path);
}

ssize_t read(int file, void *to, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "read");
    return file_fails(file) ? -1 : real(file, to, count);
}

ssize_t pread64(int file, void *to, size_t count, off64_t offset) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    return file_fails(file) ? -1 : real(file, to, count, offset);
}

/* The path of the file that is mapped at an address, from /proc/self/maps. */
static int find_mapped(void *address, char *path) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[PATH_MAX + 128];
    int found = 0;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long begin, end, wanted = (unsigned long)address;
        path[0] = 0;
        sscanf(line, "%lx-%lx %*s %*s %*s %*s %s", &begin, &end, path);
        found = begin <= wanted && wanted < end;
    }
    if (maps) fclose(maps);
    return found;
}

int madvise(void *address, size_t length, int advice) {
    static int (*real)(void *, size_t, int);
    char path[PATH_MAX];
    if (!real) real = dlsym(RTLD_NEXT, "madvise");
    if (advice == 22 && find_mapped(address, path) && fails("madvise", path)) return -1;
    return real(address, length, advice);
}
