/* tilewright_run ART input.bin output.bin
 * tilewright_run --images N ART input.bin output.bin
 *
 * Both files hold raw tensors, one after another in the order of the manifest, without any header;
 * with --images, those of N images. Then the CPU packs and unpacks while the device has another.
 * Exit code: 0; 2 if the arguments, the artifact or the input are wrong; 1 if the device, the
 * memory or the disk failed.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

enum { FAILED = 1, REFUSED = 2 };
enum { IN_FLIGHT = 2 };
#define MOST_IMAGES 1000000000ul

static int exit_code(int code) {
  switch (code) {
    case TILEWRIGHT_OK:
      return EXIT_SUCCESS;
    case TILEWRIGHT_NO_MEMORY:
    case TILEWRIGHT_NO_DEVICE:
    case TILEWRIGHT_TIME_OUT:
      return FAILED;
    default:
      return REFUSED;
  }
}

static int say(const tilewright *net, int code) {
  if (code) fprintf(stderr, "tilewright_run: %s\n", tilewright_message(net));
  return exit_code(code);
}

static size_t all_bytes(const tilewright *net, size_t count,
                        size_t (*bytes)(const tilewright *, size_t)) {
  size_t total = 0, i;
  for (i = 0; i < count; i++) {
    size_t more = bytes(net, i);
    if (more > SIZE_MAX - total) return SIZE_MAX;
    total += more;
  }
  return total;
}

/* Exactly `bytes` bytes of a file. */
static int read_exactly(const char *path, unsigned char *data, size_t bytes) {
  FILE *file = fopen(path, "rb");
  size_t got;
  int longer, broken;
  if (!file) {
    fprintf(stderr, "tilewright_run: cannot open %s\n", path);
    return REFUSED;
  }
  got = fread(data, 1, bytes, file);
  longer = got == bytes && fgetc(file) != EOF;
  broken = ferror(file);
  fclose(file);
  if (broken) {
    fprintf(stderr, "tilewright_run: cannot read %s\n", path);
    return REFUSED;
  }
  if (got != bytes || longer) {
    fprintf(stderr, "tilewright_run: %s has %s bytes than the %lu of the network's inputs\n", path,
            longer ? "more" : "fewer", (unsigned long)bytes);
    return REFUSED;
  }
  return EXIT_SUCCESS;
}

static int write_all(const char *path, const unsigned char *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  int good;
  if (!file) {
    fprintf(stderr, "tilewright_run: cannot write %s\n", path);
    return REFUSED;
  }
  good = fwrite(data, 1, bytes, file) == bytes;
  good = fclose(file) == 0 && good;
  if (good) return EXIT_SUCCESS;
  /* Whatever it is stays where it is: it may be a device. */
  fprintf(stderr, "tilewright_run: cannot write all of %s, do not use it; is the disk full?\n", path);
  return FAILED;
}

/* Runs on the bytes of all inputs and fills those of all outputs. */
static int infer(tilewright *net, const unsigned char *in, unsigned char *out) {
  size_t i, bytes;
  int code = TILEWRIGHT_OK;
  for (i = 0; !code && i < tilewright_input_count(net); i++, in += bytes) {
    bytes = tilewright_input_bytes(net, i);
    code = tilewright_set_input(net, i, in, bytes);
  }
  if (!code) code = tilewright_run(net);
  for (i = 0; !code && i < tilewright_output_count(net); i++, out += bytes) {
    bytes = tilewright_output_bytes(net, i);
    code = tilewright_get_output(net, i, out, bytes);
  }
  return say(net, code);
}

static int run_files(tilewright *net, const char *from, const char *to) {
  size_t in_bytes = all_bytes(net, tilewright_input_count(net), tilewright_input_bytes);
  size_t out_bytes = all_bytes(net, tilewright_output_count(net), tilewright_output_bytes);
  unsigned char *in = malloc(in_bytes ? in_bytes : 1);
  unsigned char *out = malloc(out_bytes ? out_bytes : 1);
  int code;
  if (!in || !out) {
    fprintf(stderr, "tilewright_run: there is no memory for %lu bytes of inputs and %lu of outputs\n",
            (unsigned long)in_bytes, (unsigned long)out_bytes);
    code = FAILED;
  } else {
    code = read_exactly(from, in, in_bytes);
    if (!code) code = infer(net, in, out);
    if (!code) code = write_all(to, out, out_bytes);
    if (!code) printf("%lu bytes in, %lu bytes out: %s\n", (unsigned long)in_bytes,
                      (unsigned long)out_bytes, to);
  }
  free(in);
  free(out);
  return code;
}

typedef struct {
  FILE *from, *to;
} files_t;

static int read_tensor(void *context, size_t image, size_t input, void *data, size_t bytes) {
  files_t *files = context;
  (void)image, (void)input;
  return fread(data, 1, bytes, files->from) != bytes;
}

static int write_tensor(void *context, size_t image, size_t output, const void *data,
                        size_t bytes) {
  files_t *files = context;
  (void)image, (void)output;
  return fwrite(data, 1, bytes, files->to) != bytes;
}

/* Whether `from` ends where it is; says so if not. */
static int ends(FILE *from, const char *path) {
  if (fgetc(from) == EOF) return 1;
  fprintf(stderr, "tilewright_run: %s has more bytes than those of so many images\n", path);
  return 0;
}

static int run_images(tilewright *net, size_t count, const char *from, const char *to) {
  files_t files = {fopen(from, "rb"), NULL};
  tilewright_images images = {&files, read_tensor, write_tensor};
  int code = REFUSED;
  if (!files.from) {
    fprintf(stderr, "tilewright_run: cannot open %s\n", from);
    return REFUSED;
  }
  files.to = fopen(to, "wb");
  if (files.to) {
    code = tilewright_run_images(net, count, IN_FLIGHT, &images);
    if (code == TILEWRIGHT_STOPPED)
      fprintf(stderr, "tilewright_run: %s has fewer bytes than those of %lu images, or %s cannot be "
              "written\n", from, (unsigned long)count, to);
    code = code == TILEWRIGHT_STOPPED ? REFUSED : say(net, code);
    if (!code && !ends(files.from, from)) code = REFUSED;
    if (fclose(files.to) && !code) {
      fprintf(stderr, "tilewright_run: cannot write all of %s, is the disk full?\n", to);
      code = FAILED;
    }
  } else {
    fprintf(stderr, "tilewright_run: cannot write %s\n", to);
  }
  fclose(files.from);
  if (!code) printf("%lu images: %s\n", (unsigned long)count, to);
  return code;
}

/* The N of --images, 0 for what is no number of images. */
static size_t count_of(const char *text) {
  char *end;
  unsigned long count = strtoul(text, &end, 10);
  return *text < '0' || *text > '9' || *end || count > MOST_IMAGES ? 0 : (size_t)count;
}

int main(int argc, char **argv) {
  tilewright *net = NULL;
  size_t images = 0;
  int code;
  if (argc == 6 && !strcmp(argv[1], "--images")) {
    images = count_of(argv[2]);
    argv += 2;
    argc = images ? argc - 2 : 0;
  }
  if (argc != 4) {
    fprintf(stderr,
            "usage: tilewright_run ART input.bin output.bin\n"
            "       tilewright_run --images N ART input.bin output.bin\n"
            "Runs the network of the folder ART on raw tensors, one after another in the order of\n"
            "its manifest.json, and writes its outputs likewise; with --images those of N images,\n"
            "which the CPU packs and unpacks while the device has another.\n");
    return REFUSED;
  }
  code = tilewright_open(argv[1], &net);
  if (code) {
    code = say(net, code);
  } else if (images) {
    code = run_images(net, images, argv[2], argv[3]);
  } else {
    code = run_files(net, argv[2], argv[3]);
  }
  tilewright_close(net);
  return code;
}
