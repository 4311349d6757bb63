/* Opens, feeds and closes a network with the n-th allocation of the host failing, for every n; a line
 * each: code, message. Linked with --wrap=malloc,--wrap=calloc. */

#include <stdio.h>
#include <stdlib.h>

#include "tilewright.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static long left = -1;

void *__wrap_malloc(size_t bytes) { return left-- == 0 ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes) {
  return left-- == 0 ? NULL : __real_calloc(count, bytes);
}

int main(int argc, char **argv) {
  long n;
  int code = 1;
  if (argc != 2) return 2;
  for (n = 0; code && n < 1000; n++) {
    tilewright *net = NULL;
    left = n;
    code = tilewright_open(argv[1], &net);
    printf("%d %s\n", code, tilewright_message(net));
    tilewright_close(net);
  }
  return code;
}
