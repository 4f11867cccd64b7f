/* The recorder's file. See record_file.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format.h"

enum { NAMES_TRIED = 10000, LIMIT_DEFAULT_MB = 4096, RECORD_NAME_BYTES = 256 };

/* The folder of the file may be one that others write to. `hakmem record` resolves the links of its path, so one that is
 * met here was put there since, and might lead anywhere: it is not followed. Nor is another file of that name. */
static dev_t own_device;
static ino_t own_number;

static bool settings_read;
static char base_name[RECORD_PATH_BYTES];
static uint64_t limit_mb; /* of one file */

/* Of glibc since 2.32: it neither translates nor allocates. */
extern const char *strerrordesc_np(int error) __attribute__((weak));

static const char *error_text(int error) {
    return strerrordesc_np != NULL ? strerrordesc_np(error) : strerror(error);
}

void record_complain(const char *what, const char *detail) {
    char line[RECORD_PATH_BYTES + 256];
    int length = snprintf(line, sizeof line, "hakmem record: process %ld: %s: %s\n",
                          (long)getpid(), what, detail);
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0) return;
}

static void read_text(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    size_t length = 0;
    ssize_t got;
    while (length < bytes && (got = read(fd, text + length, bytes - length)) > 0)
        length += (size_t)got;
    close(fd);
}

/* A write that a limit cuts short names no reason; the one for the rest does. */
static bool write_whole(int fd, const void *data, size_t bytes) {
    for (const char *next = data; bytes > 0;) {
        ssize_t written = write(fd, next, bytes);
        if (written <= 0) return false;
        next += written;
        bytes -= (size_t)written;
    }
    return true;
}

static bool write_header(int fd, bool forked) {
    static trace_header header;
    memset(&header, 0, sizeof header);
    memcpy(header.magic, TRACE_MAGIC, sizeof header.magic);
    header.byte_order = TRACE_BYTE_ORDER;
    header.version = TRACE_VERSION;
    header.header_bytes = TRACE_HEADER_BYTES;
    header.chunk_bytes = TRACE_CHUNK_BYTES;
    header.process = (uint64_t)getpid();
    header.flags = forked ? TRACE_FORKED : 0;
    if (readlink("/proc/self/exe", header.executable, sizeof header.executable - 1) < 0)
        header.executable[0] = '\0';
    read_text("/proc/self/cmdline", header.command, sizeof header.command - 1);
    return write_whole(fd, &header, sizeof header) &&
           ftruncate(fd, TRACE_HEADER_BYTES) == 0;
}

static int open_at(int folder, const char *path, int flags) {
    char name[RECORD_NAME_BYTES];
    size_t length = strcspn(path, "/");
    bool is_last = path[length + strspn(path + length, "/")] == '\0';
    if (length >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(name, path, length);
    name[length] = '\0';
    if (!is_last) flags = O_PATH | O_DIRECTORY;
    return openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC, 0644);
}

/* By an absolute path, folder by folder. */
static int open_walked(const char *path, int flags) {
    int found = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (path += strspn(path, "/"); found >= 0 && *path != '\0';) {
        int folder = found;
        found = open_at(folder, path, flags);
        int error = errno;
        close(folder);
        errno = error;
        path += strcspn(path, "/");
        path += strspn(path, "/");
    }
    return found;
}

static int create_new(char *path, const char *name) {
    for (int n = 0; n < NAMES_TRIED; n++) {
        char ending[48] = "";
        if (n == 1) snprintf(ending, sizeof ending, ".%ld", (long)getpid());
        if (n > 1) snprintf(ending, sizeof ending, ".%ld.%d", (long)getpid(), n);
        if (snprintf(path, RECORD_PATH_BYTES, "%s%s", name, ending) >= RECORD_PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open_walked(path, O_RDWR | O_CREAT | O_EXCL);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static int reopen(const char *path) {
    struct stat found;
    int fd = open_walked(path, O_RDWR);
    if (fd < 0 || (fstat(fd, &found) == 0 && found.st_dev == own_device && found.st_ino == own_number)) return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

bool record_file_settings(void) {
    if (settings_read) return true;
    if (environ == NULL) return false;
    const char *name = getenv("HAKLAB_RECORD_FILE"), *limit = getenv("HAKLAB_RECORD_LIMIT_MB");
    if (name != NULL) snprintf(base_name, sizeof base_name, "%s", name);
    limit_mb = limit != NULL ? strtoull(limit, NULL, 10) : 0;
    if (limit_mb == 0) limit_mb = LIMIT_DEFAULT_MB;
    settings_read = true;
    return true;
}

bool record_file_create(char *path, bool forked) {
    if (base_name[0] != '/') {
        record_complain("nothing recorded: HAKLAB_RECORD_FILE is no absolute path",
                        base_name[0] != '\0' ? base_name : "not set");
        return false;
    }
    int fd = create_new(path, base_name);
    struct stat found;
    bool made = fd >= 0 && fstat(fd, &found) == 0 && write_header(fd, forked);
    if (made) own_device = found.st_dev, own_number = found.st_ino;
    if (!made) record_complain(base_name, error_text(errno));
    if (fd >= 0) close(fd);
    return made;
}

uint8_t *record_file_map(const char *path, uint64_t index) {
    off_t offset = (off_t)(TRACE_HEADER_BYTES + index * TRACE_CHUNK_BYTES);
    if (((uint64_t)offset + TRACE_CHUNK_BYTES) >> 20 >= limit_mb) {
        record_complain("recording stops here, the file has reached its limit", path);
        return NULL;
    }
    int fd = reopen(path);
    /* Blocks are reserved first: a full disk is an error here, and would be a SIGBUS later. */
    bool room = fd >= 0 && fallocate(fd, 0, offset, TRACE_CHUNK_BYTES) == 0;
    if (fd >= 0 && !room && errno == EOPNOTSUPP)
        room = ftruncate(fd, offset + TRACE_CHUNK_BYTES) == 0;
    void *window = MAP_FAILED;
    if (room)
        window = mmap(NULL, TRACE_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (window == MAP_FAILED) record_complain("recording stops here", error_text(errno));
    if (fd >= 0) close(fd);
    if (window == MAP_FAILED) return NULL;
    madvise(window, TRACE_CHUNK_BYTES, MADV_DONTFORK);
    return window;
}
