/* Runs a library in a process, in a child of it, and in a child of the child. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tilewright_cpu.h"

static tilewright_library *net;
static float image[32 * 56 * 56] __attribute__((aligned(64))), first[64 * 52 * 52];

static int same(const char *who) {
  tilewright_tensor in = {image, {1, 32, 56, 56}, 4, TILEWRIGHT_FLOAT32}, out;
  if (tilewright_library_run(net, &in, 1, &out, 1)) {
    fprintf(stderr, "%s: %s\n", who, tilewright_library_error());
    return 1;
  }
  return memcmp(out.data, first, sizeof first) != 0;
}

static int in_child(int depth, const char *path) {
  int status = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child) return waitpid(child, &status, 0) < 0 || status;
  alarm(60);
  int failed = same("the library of the parent");
  if (depth == 2) {
    tilewright_library_close(net);
    if (tilewright_library_open(path, 2, &net)) failed = 2;
    failed |= same("a library that was opened here");
  }
  if (depth < 3) failed |= in_child(depth + 1, path);
  tilewright_library_close(net);
  _exit(failed);
}

int main(int count, char **words) {
  tilewright_tensor in = {image, {1, 32, 56, 56}, 4, TILEWRIGHT_FLOAT32}, out;
  for (size_t n = 0; n < sizeof image / sizeof *image; n++) image[n] = (float)(n % 13) - 6;
  if (count < 2 || tilewright_library_open(words[1], 2, &net) ||
      tilewright_library_run(net, &in, 1, &out, 1)) {
    fprintf(stderr, "%s\n", tilewright_library_error());
    return 3;
  }
  memcpy(first, out.data, sizeof first);
  int failed = in_child(1, words[1]);
  return failed || same("the parent");
}
