/* Runs a library on a file of float32, and writes its first output to another. */

#include <stdio.h>
#include <stdlib.h>

#include "tilewright_cpu.h"

int main(int count, char **words) {
  if (count < 6 || count - 5 > TILEWRIGHT_MOST_AXES) {
    fprintf(stderr, "usage: %s NETWORK.SO THREADS IN OUT SIZE...\n", words[0]);
    return 2;
  }
  tilewright_tensor in = {.axes = count - 5, .dtype = TILEWRIGHT_FLOAT32}, out;
  size_t elements = 1;
  for (int axis = 0; axis < in.axes; axis++)
    elements *= (size_t)(in.shape[axis] = atoll(words[5 + axis]));
  in.data = malloc(elements * sizeof(float));
  FILE *file = fopen(words[3], "rb");
  if (!in.data || !file || fread(in.data, sizeof(float), elements, file) != elements) {
    fprintf(stderr, "error: %s does not hold %zu float32\n", words[3], elements);
    return 2;
  }
  fclose(file);
  tilewright_library *net;
  if (tilewright_library_open(words[1], atoi(words[2]), &net) ||
      tilewright_library_run(net, &in, 1, &out, 1)) {
    fprintf(stderr, "error: %s\n", tilewright_library_error());
    return 1;
  }
  size_t size = out.dtype == TILEWRIGHT_FLOAT32 ? sizeof(float) : 0;
  for (int axis = 0; axis < out.axes; axis++) size *= (size_t)out.shape[axis];
  file = fopen(words[4], "wb");
  if (!file || fwrite(out.data, 1, size, file) != size || fclose(file)) return 2;
  tilewright_library_close(net);
  free(in.data);
  return 0;
}
