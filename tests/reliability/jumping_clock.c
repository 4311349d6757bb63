/* Sets the clock of a process a day forward and back again and again: preloaded into every process
 * of a command, its servers among them. The time since boot goes on as it does. It writes to the
 * file that JUMPED names, a byte for each process that asked after the first jump. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DAY 86400
#define EVERY_MS 300

typedef int (*clock_call)(clockid_t, struct timespec *);

static clock_call real_clock(void) {
  static clock_call found;
  if (found == NULL) found = (clock_call)dlsym(RTLD_NEXT, "clock_gettime");
  return found;
}

static void note(void) {
  static int told;
  const char *path = getenv("JUMPED");
  int file;
  if (told || path == NULL) return;
  told = 1;
  file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (write(file, "j", 1) != 1) abort();
  close(file);
}

static time_t shift(void) {
  static const time_t days[] = {0, 1, 0, -1};
  struct timespec now;
  real_clock()(CLOCK_MONOTONIC, &now);
  time_t jump = days[(now.tv_sec * 1000 + now.tv_nsec / 1000000) / EVERY_MS % 4] * DAY;
  if (jump) note();
  return jump;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = real_clock()(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += shift();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *into) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (into != NULL) *into = found.tv_sec;
  return found.tv_sec;
}
