/* Runs a network on images through the library: run_images ART COUNT IN_FLIGHT FAIL_AT. Images are
 * read from stdin and outputs written to stdout; the read of image FAIL_AT fails, if there is one.
 * Prints the code and the message where a run fails, and runs once more by itself afterwards.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

typedef struct {
  size_t fail_at, next_in, next_out;
} progress_t;

static int read_tensor(void *context, size_t image, size_t input, void *data, size_t bytes) {
  progress_t *progress = context;
  if (image != progress->next_in++ || input != 0) abort(); /* networks here have one input */
  return image == progress->fail_at || fread(data, 1, bytes, stdin) != bytes;
}

static int write_tensor(void *context, size_t image, size_t output, const void *data,
                        size_t bytes) {
  progress_t *progress = context;
  if (image != progress->next_out++ || output != 0) abort();
  return fwrite(data, 1, bytes, stdout) != bytes;
}

int main(int argc, char **argv) {
  progress_t progress = {0, 0, 0};
  tilewright_images images = {&progress, read_tensor, write_tensor};
  tilewright *net = NULL;
  int code;
  if (argc != 5) return 2;
  progress.fail_at = strtoul(argv[4], NULL, 10);
  if (tilewright_open(argv[1], &net)) return 3;
  if (tilewright_run_images(NULL, 1, 1, &images) != TILEWRIGHT_BAD_ARGUMENT) return 4;
  if (tilewright_run_images(net, 1, 0, &images) != TILEWRIGHT_BAD_ARGUMENT) return 4;
  if (tilewright_run_images(net, 1, 1, NULL) != TILEWRIGHT_BAD_ARGUMENT) return 4;
  if (tilewright_run_images(net, 0, 2, &images) != TILEWRIGHT_OK) return 4;
  code = tilewright_run_images(net, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10),
                               &images);
  if (code) fprintf(stderr, "%d: %s\n", code, tilewright_message(net));
  if (!code && progress.next_out != progress.next_in) return 5;
  tilewright_close(net);
  return code;
}
