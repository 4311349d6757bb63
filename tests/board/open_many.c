/* Opens each folder named on stdin and runs what opens; a line each: code, message. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

static int use(tilewright *net) {
  size_t i;
  int code = TILEWRIGHT_OK;
  for (i = 0; !code && i < tilewright_input_count(net); i++) {
    size_t bytes = tilewright_input_bytes(net, i);
    void *data = calloc(bytes, 1);
    code = data ? tilewright_set_input(net, i, data, bytes) : -1;
    free(data);
  }
  return code;
}

int main(void) {
  char folder[4096];
  while (fgets(folder, sizeof folder, stdin)) {
    tilewright *net = NULL;
    int code;
    folder[strcspn(folder, "\n")] = 0;
    code = tilewright_open(folder, &net);
    if (!code) code = use(net);
    printf("%d %s\n", code, tilewright_message(net));
    fflush(stdout);
    tilewright_close(net);
  }
  return 0;
}
