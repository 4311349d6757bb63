/* Every function of the public header, used rightly and wrongly; the output of two runs goes to
 * stdout, and the exit code is the number of the line that went wrong. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

static int line;

#define EXPECT(condition) \
  do {                    \
    if (!(condition) && !line) line = __LINE__; \
  } while (0)

static void without_a_network(void) {
  EXPECT(tilewright_open("nowhere", NULL) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_message(NULL)[0]);
  EXPECT(tilewright_run(NULL) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_set_input(NULL, 0, "", 1) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_get_output(NULL, 0, &line, 1) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_set_patience(NULL, 1) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(!tilewright_input_count(NULL) && !tilewright_output_count(NULL));
  EXPECT(!tilewright_input_name(NULL, 0) && !tilewright_output_name(NULL, 0));
  tilewright_close(NULL);
}

static void that_did_not_open(void) {
  tilewright *net = NULL;
  EXPECT(tilewright_open(NULL, &net) == TILEWRIGHT_BAD_ARGUMENT);
  tilewright_close(net);
  EXPECT(tilewright_open("/nowhere/at/all", &net) == TILEWRIGHT_BAD_FILE);
  EXPECT(strstr(tilewright_message(net), "/nowhere/at/all/network.bin"));
  EXPECT(!tilewright_input_count(net) && !tilewright_output_count(net));
  EXPECT(tilewright_run(net) == TILEWRIGHT_BAD_ARGUMENT);
  tilewright_close(net);
}

static void describe(const tilewright *net) {
  EXPECT(tilewright_input_count(net) == 1 && tilewright_output_count(net) == 1);
  EXPECT(!strcmp(tilewright_input_name(net, 0), "data"));
  EXPECT(!strcmp(tilewright_output_name(net, 0), "out"));
  EXPECT(tilewright_input_type(net, 0) == TILEWRIGHT_FLOAT32);
  EXPECT(tilewright_output_type(net, 0) == TILEWRIGHT_FLOAT32);
  EXPECT(tilewright_input_scale(net, 0) == 0.0625f && tilewright_output_scale(net, 0) == 3.3f);
  EXPECT(tilewright_input_zero_point(net, 0) == 0 && tilewright_output_zero_point(net, 0) == -7);
  EXPECT(tilewright_input_scale(net, 1) == 0 && tilewright_output_zero_point(net, 1) == 0);
  EXPECT(tilewright_input_rank(net, 0) == 2 && tilewright_output_rank(net, 0) == 2);
  EXPECT(tilewright_input_size(net, 0, 0) == 1 && tilewright_input_size(net, 0, 1) == 40);
  EXPECT(tilewright_output_size(net, 0, 1) == 24 && !tilewright_output_size(net, 0, 2));
  EXPECT(tilewright_input_bytes(net, 0) == 160 && tilewright_output_bytes(net, 0) == 96);
  EXPECT(!tilewright_input_name(net, 1) && !tilewright_output_name(net, 1));
  EXPECT(!tilewright_input_type(net, 1) && !tilewright_output_type(net, 1));
  EXPECT(!tilewright_input_bytes(net, 1) && !tilewright_output_bytes(net, 1));
}

static void infer(tilewright *net) {
  float in[40], out[24], nan_in[40];
  const unsigned char not_a_number[4] = {0, 0, 0xc0, 0x7f};
  int i;
  for (i = 0; i < 40; i++) in[i] = (float)(i - 20) / 8;
  memcpy(nan_in, in, sizeof in);
  memcpy(&nan_in[3], not_a_number, 4);
  EXPECT(tilewright_message(net)[0] == 0);
  EXPECT(tilewright_run(net) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(!strcmp(tilewright_message(net), "input 'data' was not set"));
  EXPECT(tilewright_get_output(net, 0, out, sizeof out) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_set_input(net, 1, in, sizeof in) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_set_input(net, 0, NULL, sizeof in) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(tilewright_set_input(net, 0, in, 40) == TILEWRIGHT_BAD_ARGUMENT);
  EXPECT(strstr(tilewright_message(net), "has 160 bytes, not 40"));
  EXPECT(tilewright_set_input(net, 0, in, sizeof in) == TILEWRIGHT_OK);
  EXPECT(tilewright_set_input(net, 0, nan_in, sizeof in) == TILEWRIGHT_BAD_VALUE);
  EXPECT(tilewright_set_patience(net, 1000) == TILEWRIGHT_OK);
  for (i = 0; i < 2; i++) {
    EXPECT(tilewright_run(net) == TILEWRIGHT_OK);
    EXPECT(tilewright_get_output(net, 1, out, sizeof out) == TILEWRIGHT_BAD_ARGUMENT);
    EXPECT(tilewright_get_output(net, 0, out, 95) == TILEWRIGHT_BAD_ARGUMENT);
    EXPECT(tilewright_get_output(net, 0, NULL, sizeof out) == TILEWRIGHT_BAD_ARGUMENT);
    EXPECT(tilewright_get_output(net, 0, out, sizeof out) == TILEWRIGHT_OK);
    fwrite(out, 1, sizeof out, stdout);
  }
}

int main(int argc, char **argv) {
  tilewright *net = NULL, *other = NULL;
  if (argc != 2) return 2;
  without_a_network();
  that_did_not_open();
  EXPECT(tilewright_open(argv[1], &net) == TILEWRIGHT_OK);
  EXPECT(tilewright_open(argv[1], &other) == TILEWRIGHT_OK);
  if (net && other) {
    describe(net);
    infer(other);
  }
  tilewright_close(net);
  tilewright_close(other);
  if (line) fprintf(stderr, "line %d\n", line);
  return line != 0;
}
