/* Keeps, beside a folder, what a power cut would leave of it: preloaded into a process, it copies each file when that file is synced, and
 * the list of names of each folder when that folder is synced. What was written, made, renamed or removed after that is not in the copies.
 *
 * UNSYNCED_HOME names the folder, UNSYNCED_KEPT where the copies are: data/KEY holds the content of the file KEY (kind, inode and time of
 * birth), names/KEY one line "KEY NAME" for each name in the folder KEY. tests/support/unsynced.py begins and reads them.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* A kept copy that can't be written would be taken for lost data by the test: better none at all. */
static void give_up(const char *what) {
    fprintf(stderr, "unsynced: %s: %s\n", what, strerror(errno));
    _exit(97);
}

static void name_key(int folder, const char *name, char key[64]) {
    struct statx found;
    int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
    if (statx(folder, name, flags, STATX_TYPE | STATX_INO | STATX_BTIME, &found) != 0) {
        key[0] = 0; /* removed meanwhile */
        return;
    }
    char kind = S_ISDIR(found.stx_mode) ? 'd' : S_ISREG(found.stx_mode) ? 'f' : 'x';
    snprintf(key, 64, "%c%llu-%lld-%u", kind, (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
}

static void write_all(int out, const char *bytes, ssize_t size) {
    while (size > 0) {
        ssize_t done = write(out, bytes, (size_t)size);
        if (done < 0) give_up("write");
        bytes += done;
        size -= done;
    }
}

static void keep_content(int file, int out) {
    char buffer[1 << 16], link[64];
    off_t at = 0;
    int again = -1;
    for (;;) {
        ssize_t size = pread(again < 0 ? file : again, buffer, sizeof buffer, at);
        if (size < 0 && errno == EBADF && again < 0) {
            /* Opened for writing alone. A second handle only here: closing one drops the locks that SQLite holds on its files. */
            snprintf(link, sizeof link, "/proc/self/fd/%d", file);
            if ((again = open(link, O_RDONLY | O_CLOEXEC)) < 0) give_up(link);
            continue;
        }
        if (size < 0) give_up("pread");
        if (size == 0) break;
        write_all(out, buffer, size);
        at += size;
    }
    if (again >= 0) close(again);
}

static void keep_names(const char *path, int out) {
    DIR *folder = opendir(path);
    if (folder == NULL) give_up(path);
    char line[NAME_MAX + 80], key[64];
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        name_key(dirfd(folder), entry->d_name, key);
        if (key[0]) write_all(out, line, snprintf(line, sizeof line, "%s %s\n", key, entry->d_name));
    }
    closedir(folder);
}

/* Also called by the test, for what is there before the process starts. */
void unsynced_keep(int file, const char *home, const char *kept) {
    char link[64], path[PATH_MAX], draft[PATH_MAX], final[PATH_MAX], key[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    size_t length = strlen(home);
    if (strncmp(path, home, length) != 0 || (path[length] != '/' && path[length] != 0)) return;
    name_key(file, "", key);
    int is_folder = key[0] == 'd';
    if (!is_folder && key[0] != 'f') return;
    pthread_mutex_lock(&one_at_a_time);
    snprintf(draft, sizeof draft, "%s/draft.%d", kept, (int)getpid());
    snprintf(final, sizeof final, "%s/%s/%s", kept, is_folder ? "names" : "data", key);
    int out = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) give_up(draft);
    if (is_folder)
        keep_names(path, out);
    else
        keep_content(file, out);
    close(out);
    if (rename(draft, final) != 0) give_up(final); /* whole or not at all: the process may be killed here */
    pthread_mutex_unlock(&one_at_a_time);
}

static int sync_and_keep(const char *name, int file) {
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = original(file);
    int error = errno;
    const char *home = getenv("UNSYNCED_HOME"), *kept = getenv("UNSYNCED_KEPT");
    if (result == 0 && home != NULL && kept != NULL) unsynced_keep(file, home, kept);
    errno = error;
    return result;
}

int fsync(int file) { return sync_and_keep("fsync", file); }

int fdatasync(int file) { return sync_and_keep("fdatasync", file); }
