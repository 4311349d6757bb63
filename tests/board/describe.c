/* A line for each input and output of a network: side, name, type, scale, zero point, bytes, axes. */

#include <stdio.h>

#include "tilewright.h"

int main(int argc, char **argv) {
  tilewright *net = NULL;
  size_t i, axis;
  int code = argc == 2 ? tilewright_open(argv[1], &net) : 2;
  if (code) fprintf(stderr, "%s\n", tilewright_message(net));
  for (i = 0; i < tilewright_input_count(net); i++) {
    printf("in %s %d %.9g %d %lu", tilewright_input_name(net, i), tilewright_input_type(net, i),
           (double)tilewright_input_scale(net, i), tilewright_input_zero_point(net, i),
           (unsigned long)tilewright_input_bytes(net, i));
    for (axis = 0; axis < tilewright_input_rank(net, i); axis++)
      printf(" %lu", (unsigned long)tilewright_input_size(net, i, axis));
    printf("\n");
  }
  for (i = 0; i < tilewright_output_count(net); i++) {
    printf("out %s %d %.9g %d %lu", tilewright_output_name(net, i), tilewright_output_type(net, i),
           (double)tilewright_output_scale(net, i), tilewright_output_zero_point(net, i),
           (unsigned long)tilewright_output_bytes(net, i));
    for (axis = 0; axis < tilewright_output_rank(net, i); axis++)
      printf(" %lu", (unsigned long)tilewright_output_size(net, i, axis));
    printf("\n");
  }
  tilewright_close(net);
  return code;
}
