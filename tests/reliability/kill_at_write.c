/* Kills a process at a chosen write: before, within, or after a call that changes a file. Preloaded
 * into a process, it sees the calls of every library, SQLite's too. watch() says which folder and
 * where; a write has a third place, with half of it written. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long kill_at = -1, passed;

void watch(const char *where, long at) {
  snprintf(folder, sizeof folder, "%s/", where);
  kill_at = at;
  passed = 0;
}

long passed_places(void) { return passed; }

static int inside(int file) {
  char link[64], path[PATH_MAX];
  ssize_t length;
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return !strncmp(path, folder, strlen(folder));
}

static int is_due(void) { return passed++ == kill_at; }

static void place(void) {
  if (is_due()) kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CHANGE(result, call) \
  result found;              \
  place();                   \
  found = call;              \
  place();                   \
  return found

ssize_t write(int file, const void *data, size_t size) {
  if (!inside(file)) return REAL(write)(file, data, size);
  if (is_due()) {
    REAL(write)(file, data, size / 2);
    kill(getpid(), SIGKILL);
  }
  CHANGE(ssize_t, REAL(write)(file, data, size));
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
  if (!inside(file)) return REAL(pwrite64)(file, data, size, at);
  if (is_due()) {
    REAL(pwrite64)(file, data, size / 2, at);
    kill(getpid(), SIGKILL);
  }
  CHANGE(ssize_t, REAL(pwrite64)(file, data, size, at));
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
  return pwrite64(file, data, size, at);
}

int fsync(int file) {
  if (!inside(file)) return REAL(fsync)(file);
  CHANGE(int, REAL(fsync)(file));
}

int fdatasync(int file) {
  if (!inside(file)) return REAL(fdatasync)(file);
  CHANGE(int, REAL(fdatasync)(file));
}

int ftruncate64(int file, off64_t size) {
  if (!inside(file)) return REAL(ftruncate64)(file, size);
  CHANGE(int, REAL(ftruncate64)(file, size));
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int unlink(const char *path) {
  if (!folder[0] || strncmp(path, folder, strlen(folder))) return REAL(unlink)(path);
  CHANGE(int, REAL(unlink)(path));
}
