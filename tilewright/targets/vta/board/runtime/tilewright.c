/* Runs an artifact on a VTA through the stock driver: C99, POSIX and the functions of driver.h.
 *
 * Nothing in the files is believed: every number is checked before it is used as a size, an offset
 * or an index, and every transfer of every instruction against the buffer it reads or writes. How
 * large an element is the files do not say: machine.h does, which is the bitstream's.
 */

#define _POSIX_C_SOURCE 200809L

#include "tilewright.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "images.h"
#include "machine.h"

#if CHAR_BIT != 8
#error "this runtime needs bytes of 8 bits"
#endif
#if defined(__BYTE_ORDER__) && defined(__ORDER_LITTLE_ENDIAN__)
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this runtime is for little-endian hosts, as all boards with a VTA are"
#endif
#endif
#if FLT_RADIX != 2 || FLT_MANT_DIG != 24 || DBL_MANT_DIG < 53
#error "this runtime needs IEEE floats"
#endif
#if MACHINE_LOG_INP_WIDTH != 3
#error "this runtime knows activations of 8 bits: take a machine with LOG_INP_WIDTH 3"
#endif
#if MACHINE_LOG_BLOCK_OUT + MACHINE_LOG_BLOCK_IN + MACHINE_LOG_WGT_WIDTH < 3
#error "this runtime knows weights of whole bytes a block"
#endif
#if defined(__FAST_MATH__) || defined(__RECIPROCAL_MATH__)
#error "this runtime divides floats exactly: build it without -ffast-math and -Ofast"
#endif

/* -- the format, as docs/reference/board-image.md describes it ------------------------------- */

enum { DIGEST_BYTES = 32, MAX_RANK = 8, INSTRUCTION_BYTES = 16 };
enum { HEADER_BYTES = 232, BUFFER_BYTES = 32, SEGMENT_BYTES = 8, STEP_BYTES = 16 };
enum { PORT_BYTES = 112, TENSOR_BYTES = 48, RELOCATION_BYTES = 16 };
enum { FORMAT_VERSION = 2, FLAG_BARE = 1 };
enum { KIND_UOPS = 1, KIND_CONSTANTS = 2, KIND_ACTIVATIONS = 3 };
enum { FORM_IMAGE = 1, FORM_COLUMN = 2 };
enum { OPCODE_LOAD = 0, OPCODE_STORE = 1, OPCODE_FINISH = 3 };
enum { MEMORY_UOP = 0, MEMORY_WGT, MEMORY_INP, MEMORY_ACC, MEMORY_OUT, MEMORIES };
enum { LOWEST_ZERO_POINT = -128, HIGHEST_ZERO_POINT = 127 };

enum { MACHINE_LOGS = 11 };

static const char MAGIC[] = "TWBOARD1";
/* In the order of the header. */
static const uint32_t MACHINE[MACHINE_LOGS] = {
    MACHINE_LOG_INP_WIDTH,     MACHINE_LOG_WGT_WIDTH,     MACHINE_LOG_ACC_WIDTH,
    MACHINE_LOG_BATCH,         MACHINE_LOG_BLOCK_IN,      MACHINE_LOG_BLOCK_OUT,
    MACHINE_LOG_UOP_WIDTH,     MACHINE_LOG_UOP_BUFF_SIZE, MACHINE_LOG_INP_BUFF_SIZE,
    MACHINE_LOG_WGT_BUFF_SIZE, MACHINE_LOG_ACC_BUFF_SIZE};
static const char *const MACHINE_KEYS[MACHINE_LOGS] = {
    "INP_WIDTH", "WGT_WIDTH",     "ACC_WIDTH",     "BATCH",         "BLOCK_IN",     "BLOCK_OUT",
    "UOP_WIDTH", "UOP_BUFF_SIZE", "INP_BUFF_SIZE", "WGT_BUFF_SIZE", "ACC_BUFF_SIZE"};
/* Bytes of an element of each type of memory, by the logarithms of its bits. */
#define ELEMENT(log_bits) ((uint64_t)1 << ((log_bits) - 3))
static const uint64_t ELEMENT_BYTES[MEMORIES] = {
    ELEMENT(MACHINE_LOG_UOP_WIDTH),
    ELEMENT(MACHINE_LOG_BLOCK_OUT + MACHINE_LOG_BLOCK_IN + MACHINE_LOG_WGT_WIDTH),
    ELEMENT(MACHINE_LOG_BATCH + MACHINE_LOG_BLOCK_IN + MACHINE_LOG_INP_WIDTH),
    ELEMENT(MACHINE_LOG_BATCH + MACHINE_LOG_BLOCK_OUT + MACHINE_LOG_ACC_WIDTH),
    ELEMENT(MACHINE_LOG_BATCH + MACHINE_LOG_BLOCK_OUT + MACHINE_LOG_INP_WIDTH)};
#define MAX_FILE_BYTES ((uint64_t)1 << 30)
#define MAX_NETWORK_BYTES ((uint64_t)1 << 27)
#define MAX_BUFFER_BYTES ((uint64_t)1 << 25)
#define MAX_TENSOR_BYTES ((uint64_t)1 << 28)
#define MAX_DIMENSION (((uint32_t)1 << 24) - 1)
#define MAX_MEMORY_BYTES ((uint64_t)1 << 30)
#define MAX_NAME_BYTES 1024u
#define MAX_BUFFERS ((uint32_t)1 << 12)
#define MAX_STREAMS ((uint32_t)1 << 16)
#define MAX_PORTS 1024u
#define ADDRESSES ((uint64_t)1 << 32)
#define FIRST_PATIENCE ((uint32_t)1 << 31)

typedef struct {
  const char *name;
  uint32_t kind;
  uint64_t bytes, offset; /* offset: in the file of its kind */
  void *memory;           /* the driver's */
  uint64_t address;
} buffer_t;

typedef struct {
  uint32_t rows, cols, stride_h, stride_w, pad_top, pad_left, height, width;
} unfold_t;

typedef struct {
  const char *name;
  int type, form, zero_point, unfolded;
  float step;
  uint32_t buffer, rank, shape[MAX_RANK];
  uint64_t offset;
  unfold_t unfold;
  size_t elements, bytes; /* of the host's tensor */
  /* an image, or a column as one: (n, c, h, w) before it is unfolded, `channels` afterwards */
  uint64_t n, c, h, w, channels, packed_h, packed_w;
  uint64_t batches, blocks, batch, block;
  size_t packed_bytes;
  size_t in_image; /* where it lies in an image (images.h) */
  size_t input;    /* of a load: the number of the input it is packed from */
  int8_t *staging; /* of a load: what run copies to the device, once it is set */
  int is_set;
} port_t;

/* An input or output of the network, as the host has it. */
typedef struct {
  const char *name;
  int type;
  uint32_t rank, shape[MAX_RANK];
  size_t elements, bytes;
  const port_t *port; /* its first load, NULL for an input that nothing reads; or its store */
} tensor_t;

typedef struct {
  uint64_t bytes;
  uint8_t digest[DIGEST_BYTES];
} datafile_t;

struct tilewright {
  char message[400];
  uint8_t *network;
  uint32_t buffer_count, segment_count, relocation_count, load_count, store_count;
  uint32_t text_bytes, text_at; /* text_at: behind the last name that was read */
  const uint8_t *segments, *relocations;
  const char *text;
  datafile_t instructions, uops, constants;
  buffer_t *buffers;
  port_t *ports; /* loads, then stores */
  uint32_t input_count, output_count;
  tensor_t *tensors; /* inputs, then outputs */
  uint32_t first, count; /* the stream that runs, in instructions */
  void *stream;
  uint64_t stream_address;
  int8_t *scratch;
  size_t image_bytes;
  VTADeviceHandle device;
  uint32_t patience;
  int has_run;
};

/* -- messages ---------------------------------------------------------------------------------- */

/* The character that begins there, 0 for what is no UTF-8, and how many bytes it has. */
static uint32_t character(const char *text, size_t *bytes) {
  static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
  const unsigned char *at = (const unsigned char *)text;
  uint32_t value = at[0];
  size_t more = 0;
  *bytes = 1;
  if (value >= 0x80) {
    more = value < 0xe0 ? 1 : value < 0xf0 ? 2 : 3;
    if (value < 0xc0 || value > 0xf7) return 0;
    value &= 0x3fu >> more;
  }
  while (*bytes <= more) {
    if ((at[*bytes] & 0xc0) != 0x80) {
      *bytes = 1;
      return 0;
    }
    value = value << 6 | (at[(*bytes)++] & 0x3fu);
  }
  return value < least[more] ? 0 : value;
}

/* Whether it is shown as itself: neither controls, by which a terminal can be commanded, nor what
 * turns the direction of text or is not seen. */
static int is_shown(uint32_t value) {
  static const uint32_t hidden[][2] = {
      {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},   {0x180e, 0x180e},
      {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xd800, 0xf8ff}, {0xfeff, 0xfeff},
      {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}, {0xf0000, 0xffffffff}};
  size_t i;
  for (i = 0; i < sizeof hidden / sizeof *hidden; i++)
    if (value >= hidden[i][0] && value <= hidden[i][1]) return 0;
  return 1;
}

static int fail(tilewright *net, int code, const char *format, ...) {
  va_list values;
  char *from, *to = net->message;
  va_start(values, format);
  vsnprintf(net->message, sizeof net->message, format, values);
  va_end(values);
  for (from = net->message; *from;) {
    size_t bytes;
    if (is_shown(character(from, &bytes))) {
      memmove(to, from, bytes);
      to += bytes;
    } else {
      *to++ = '?';
    }
    from += bytes;
  }
  *to = 0;
  return code;
}

static int damaged(tilewright *net, const char *what) {
  return fail(net, TILEWRIGHT_BAD_ARTIFACT,
              "network.bin is damaged or no artifact's: %s; copy the artifact again", what);
}

static int no_memory(tilewright *net, const char *what, uint64_t bytes) {
  return fail(net, TILEWRIGHT_NO_MEMORY, "there is no memory for %s (%lu bytes)", what,
              (unsigned long)bytes);
}

/* -- little-endian numbers --------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

static void put32(uint8_t *at, uint32_t value) {
  at[0] = (uint8_t)(value & 0xff);
  at[1] = (uint8_t)(value >> 8 & 0xff);
  at[2] = (uint8_t)(value >> 16 & 0xff);
  at[3] = (uint8_t)(value >> 24);
}

static int32_t signed32(uint32_t value) {
  return value < 0x80000000u ? (int32_t)value : (int32_t)(value - 0x80000000u) + INT32_MIN;
}

static int is_little_endian(void) {
  const uint32_t one = 1;
  uint8_t first;
  memcpy(&first, &one, 1);
  return first == 1;
}

static uint64_t blocks_of(uint64_t values, uint64_t block) { return (values + block - 1) / block; }

/* -- SHA-256 (FIPS 180-4) ---------------------------------------------------------------------- */

static const uint32_t SHA_K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void sha_block(uint32_t state[8], const uint8_t *data) {
  uint32_t w[64], a, b, c, d, e, f, g, h;
  int i;
  for (i = 0; i < 16; i++)
    w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
           (uint32_t)data[4 * i + 2] << 8 | (uint32_t)data[4 * i + 3];
  for (i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] +
           (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
  a = state[0], b = state[1], c = state[2], d = state[3];
  e = state[4], f = state[5], g = state[6], h = state[7];
  for (i = 0; i < 64; i++) {
    uint32_t t = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                 SHA_K[i] + w[i];
    uint32_t s = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + s;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void sha256(const uint8_t *data, size_t bytes, uint8_t digest[DIGEST_BYTES]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t bits = (uint64_t)bytes * 8;
  uint8_t last[128] = {0};
  size_t whole = bytes / 64 * 64, rest = bytes - whole, end = rest < 56 ? 64 : 128, at;
  int i;
  for (at = 0; at < whole; at += 64) sha_block(state, data + at);
  if (rest) memcpy(last, data + whole, rest);
  last[rest] = 0x80;
  for (i = 0; i < 8; i++) last[end - 1 - (size_t)i] = (uint8_t)(bits >> (8 * i) & 0xff);
  for (at = 0; at < end; at += 64) sha_block(state, last + at);
  for (i = 0; i < 32; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8) & 0xff);
}

/* -- files ------------------------------------------------------------------------------------- */

static int read_open(tilewright *net, int file, const char *path, uint64_t most, uint8_t **data,
                     size_t *bytes) {
  struct stat found;
  size_t done = 0;
  if (fstat(file, &found) || !S_ISREG(found.st_mode))
    return fail(net, TILEWRIGHT_BAD_FILE, "%s is no plain file", path);
  if ((uint64_t)found.st_size > most)
    return fail(net, TILEWRIGHT_BAD_FILE, "%s is larger than %lu MiB", path,
                (unsigned long)(most >> 20));
  *bytes = (size_t)found.st_size;
  *data = malloc(*bytes ? *bytes : 1);
  if (!*data) return no_memory(net, path, *bytes);
  while (done < *bytes) {
    ssize_t got = read(file, *data + done, *bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(net, TILEWRIGHT_BAD_FILE, "cannot read all of %s", path);
    done += (size_t)got;
  }
  return TILEWRIGHT_OK;
}

/* All of a file of the folder; `*data` is the caller's to free, also after an error. A pipe in its
 * place is not waited for, and no link is followed. */
static int read_file(tilewright *net, const char *folder, const char *name, uint64_t most,
                     uint8_t **data, size_t *bytes) {
  size_t length = strlen(folder) + 1 + strlen(name) + 1;
  char *path = malloc(length);
  int file, code;
  *data = NULL;
  if (!path) return no_memory(net, "a name", length);
  snprintf(path, length, "%s/%s", folder, name);
  file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
  if (file >= 0) {
    code = read_open(net, file, path, most, data, bytes);
    close(file);
  } else if (errno == ELOOP) {
    code = fail(net, TILEWRIGHT_BAD_FILE, "%s is a link; put the file itself there", path);
  } else {
    code = fail(net, TILEWRIGHT_BAD_FILE, "cannot open %s; is it the folder of an artifact?", path);
  }
  free(path);
  return code;
}

/* Likewise, and it must be the one that the artifact was built with. */
static int read_data(tilewright *net, const char *folder, const char *name,
                     const datafile_t *expected, uint8_t **data) {
  uint8_t digest[DIGEST_BYTES];
  size_t bytes = 0;
  int code = read_file(net, folder, name, MAX_FILE_BYTES, data, &bytes);
  if (code) return code;
  if (bytes != expected->bytes)
    return fail(net, TILEWRIGHT_BAD_ARTIFACT, "%s has %s bytes than when it was built; copy the "
                "artifact again", name, bytes < expected->bytes ? "fewer" : "more");
  sha256(*data, bytes, digest);
  if (memcmp(digest, expected->digest, DIGEST_BYTES))
    return fail(net, TILEWRIGHT_BAD_ARTIFACT,
                "%s has other bytes than when it was built; copy the artifact again", name);
  return TILEWRIGHT_OK;
}

/* -- network.bin ------------------------------------------------------------------------------- */

static int read_text(tilewright *net, const uint8_t *record, const char **text) {
  uint64_t end = (uint64_t)get32(record) + get32(record + 4);
  if (end >= net->text_bytes || net->text[end]) return damaged(net, "a name is cut");
  *text = net->text + get32(record);
  if (strlen(*text) != get32(record + 4)) return damaged(net, "a name is cut");
  return TILEWRIGHT_OK;
}

/* Names lie in the order of the tables and are short: reading and comparing all takes little. */
static int read_name(tilewright *net, const uint8_t *record, const char **name) {
  int code;
  if (get32(record) != net->text_at || get32(record + 4) > MAX_NAME_BYTES)
    return damaged(net, "a name is not in its place or too long");
  code = read_text(net, record, name);
  net->text_at += get32(record + 4) + 1;
  return code;
}

static void read_datafile(const uint8_t *size, const uint8_t *digest, datafile_t *file) {
  file->bytes = get64(size);
  memcpy(file->digest, digest, DIGEST_BYTES);
}

/* That the artifact is for the machine of the bitstream: nothing else says how large an element is. */
static int check_machine(tilewright *net, const uint8_t *logs) {
  int i;
  for (i = 0; i < MACHINE_LOGS; i++)
    if (get32(logs + 4 * i) != MACHINE[i])
      return fail(net, TILEWRIGHT_UNSUPPORTED,
                  "the artifact is for a machine with LOG_%s %lu, this runtime for one with %lu; "
                  "build the artifact for the machine of the bitstream", MACHINE_KEYS[i],
                  (unsigned long)get32(logs + 4 * i), (unsigned long)MACHINE[i]);
  return TILEWRIGHT_OK;
}

static int read_buffer(tilewright *net, const uint8_t *record, buffer_t *buffer) {
  const datafile_t *file;
  int code = read_name(net, record, &buffer->name);
  if (code) return code;
  buffer->kind = get32(record + 8);
  buffer->bytes = get64(record + 16);
  buffer->offset = get64(record + 24);
  if (buffer->kind < KIND_UOPS || buffer->kind > KIND_ACTIVATIONS)
    return damaged(net, "a buffer is of no known kind");
  if (!buffer->bytes || buffer->bytes > MAX_BUFFER_BYTES)
    return damaged(net, "a buffer is larger than a driver's");
  if (buffer->kind == KIND_ACTIVATIONS)
    return buffer->offset ? damaged(net, "a buffer is filled from no file") : TILEWRIGHT_OK;
  file = buffer->kind == KIND_UOPS ? &net->uops : &net->constants;
  if (buffer->offset > file->bytes || buffer->bytes > file->bytes - buffer->offset)
    return damaged(net, "a buffer is filled from beyond its file");
  return TILEWRIGHT_OK;
}

static int read_unfold(tilewright *net, const uint8_t *at, unfold_t *unfold) {
  uint32_t values[8];
  int i;
  for (i = 0; i < 8; i++) {
    values[i] = get32(at + 4 * i);
    if (values[i] > MAX_DIMENSION || (!values[i] && i != 4 && i != 5))
      return damaged(net, "a tensor is unfolded so as cannot be");
  }
  unfold->rows = values[0], unfold->cols = values[1];
  unfold->stride_h = values[2], unfold->stride_w = values[3];
  unfold->pad_top = values[4], unfold->pad_left = values[5];
  unfold->height = values[6], unfold->width = values[7];
  return TILEWRIGHT_OK;
}

/* `a` times `b`, or a number above every limit. */
static uint64_t product(uint64_t a, uint64_t b) {
  return a && b > MAX_TENSOR_BYTES / a ? MAX_TENSOR_BYTES + 1 : a * b;
}

/* Of an element of each type. */
static const uint8_t ITEM_BYTES[TILEWRIGHT_UINT64 + 1] = {0, 1, 4, 4, 1, 8, 1, 2, 8, 2, 2, 4, 8};

/* The axes of a tensor of that type, with its elements and bytes. */
static int read_shape(tilewright *net, const uint8_t *at, uint32_t rank, int type,
                      uint32_t shape[MAX_RANK], size_t *elements, size_t *bytes) {
  uint64_t count = 1, all;
  int empty = 0;
  uint32_t i;
  for (i = 0; i < rank; i++) {
    shape[i] = get32(at + 4 * i);
    if (shape[i] > MAX_DIMENSION) return damaged(net, "a tensor has an axis that cannot be");
    empty |= !shape[i];
    if (shape[i]) count = product(count, shape[i]);
  }
  all = empty ? 0 : product(count, ITEM_BYTES[type]);
  if (all > MAX_TENSOR_BYTES) return damaged(net, "a tensor is too large");
  *elements = empty ? 0 : (size_t)count;
  *bytes = (size_t)all;
  return TILEWRIGHT_OK;
}

/* A positive normal number, and what eight bits hold. */
static int read_scale(tilewright *net, const uint8_t *at, port_t *port) {
  uint32_t step = get32(at);
  port->zero_point = signed32(get32(at + 4));
  if (step < 0x00800000u || step >= 0x7f800000u)
    return damaged(net, "a tensor has steps that no float counts in");
  if (port->zero_point < LOWEST_ZERO_POINT || port->zero_point > HIGHEST_ZERO_POINT)
    return damaged(net, "a tensor has a zero point that is no int8");
  memcpy(&port->step, &step, 4);
  return TILEWRIGHT_OK;
}

/* How a tensor lies in its buffer. A column is an image one pixel wide whose rows are cut into
 * pixels of a batch each. */
static int place(tilewright *net, port_t *port, int is_load) {
  const buffer_t *buffer = &net->buffers[port->buffer];
  uint64_t element = ELEMENT_BYTES[is_load ? MEMORY_INP : MEMORY_OUT], packed;
  const uint32_t *s = port->shape;
  port->batch = (uint64_t)1 << MACHINE_LOG_BATCH;
  port->block = (uint64_t)1 << (is_load ? MACHINE_LOG_BLOCK_IN : MACHINE_LOG_BLOCK_OUT);
  if (port->form == FORM_COLUMN) {
    port->c = s[port->rank - 1];
    port->n = port->elements / port->c;
    port->h = port->w = port->packed_w = port->batches = 1;
    port->packed_h = blocks_of(port->n, port->batch);
  } else {
    port->n = s[0];
    port->c = port->rank > 1 ? s[1] : 1;
    port->h = port->packed_h = port->rank > 2 ? s[2] : 1;
    port->w = port->packed_w = port->rank > 3 ? s[3] : 1;
    port->batches = blocks_of(port->n, port->batch);
  }
  port->channels = port->c;
  if (port->unfolded) {
    port->channels = product(product(port->c, port->unfold.rows), port->unfold.cols);
    port->packed_h = port->unfold.height;
    port->packed_w = port->unfold.width;
  }
  port->blocks = blocks_of(port->channels, port->block);
  packed = product(product(port->packed_h, port->packed_w), port->batch * port->block);
  packed = product(packed, product(port->batches, port->blocks));
  if (port->offset % element || port->offset > buffer->bytes ||
      packed > buffer->bytes - port->offset)
    return damaged(net, "a tensor does not fit its buffer");
  port->packed_bytes = (size_t)packed;
  return TILEWRIGHT_OK;
}

static int read_port(tilewright *net, const uint8_t *record, port_t *port, int is_load) {
  uint32_t type = get32(record + 8), form = get32(record + 12), unfolded = get32(record + 44);
  int code = read_name(net, record, &port->name);
  if (code) return code;
  if ((type != TILEWRIGHT_INT8 && type != TILEWRIGHT_UINT8 && type != TILEWRIGHT_FLOAT32) ||
      (form != FORM_IMAGE && form != FORM_COLUMN))
    return damaged(net, "a tensor is of a type or form that it cannot be here");
  port->type = (int)type;
  port->form = (int)form;
  port->buffer = get32(record + 24);
  port->offset = get64(record + 32);
  port->rank = get32(record + 40);
  port->unfolded = unfolded != 0;
  code = read_scale(net, record + 16, port);
  if (code) return code;
  if (port->buffer >= net->buffer_count || net->buffers[port->buffer].kind != KIND_ACTIVATIONS)
    return damaged(net, "a tensor lies in no buffer of activations");
  if (!port->rank || port->rank > (port->form == FORM_IMAGE ? 4 : MAX_RANK))
    return damaged(net, "a tensor has too many axes");
  code = read_shape(net, record + 48, port->rank, port->type, port->shape, &port->elements,
                    &port->bytes);
  if (!code && !port->elements) return damaged(net, "a tensor has an axis that cannot be");
  if (!code && port->unfolded) {
    if (!is_load || form != FORM_IMAGE) return damaged(net, "a tensor is unfolded that cannot be");
    code = read_unfold(net, record + 80, &port->unfold);
  }
  return code ? code : place(net, port, is_load);
}

static int read_tensor(tilewright *net, const uint8_t *record, tensor_t *tensor) {
  uint32_t type = get32(record + 8);
  int code = read_name(net, record, &tensor->name);
  if (code) return code;
  if (!type || type > TILEWRIGHT_UINT64) return damaged(net, "a tensor is of no known type");
  tensor->type = (int)type;
  tensor->rank = get32(record + 12);
  if (tensor->rank > MAX_RANK) return damaged(net, "a tensor has too many axes");
  return read_shape(net, record + 16, tensor->rank, tensor->type, tensor->shape, &tensor->elements,
                    &tensor->bytes);
}

/* The first of some tensors, or of all of them, that has a name; `count` if none has. */
static uint32_t find(const tensor_t *tensors, uint32_t count, const char *name) {
  uint32_t at = 0;
  while (at < count && strcmp(tensors[at].name, name)) at++;
  return at;
}

/* Which input each load is packed from, and which store each output is: those of the same name. */
static int match_names(tilewright *net) {
  tensor_t *inputs = net->tensors, *outputs = net->tensors + net->input_count;
  uint32_t i;
  for (i = 0; i < net->load_count + net->store_count; i++) {
    int is_load = i < net->load_count;
    tensor_t *side = is_load ? inputs : outputs;
    uint32_t count = is_load ? net->input_count : net->output_count;
    port_t *port = &net->ports[i];
    uint32_t at = find(side, count, port->name);
    if (at == count) {
      if (is_load) return damaged(net, "it loads what is no input");
      continue;
    }
    if (side[at].type != port->type || side[at].elements != port->elements)
      return damaged(net, "a tensor has two shapes");
    if (!is_load && side[at].port) return damaged(net, "an output is stored twice");
    port->input = at;
    if (!side[at].port) side[at].port = port;
  }
  for (i = 0; i < net->output_count; i++)
    if (!outputs[i].port) return damaged(net, "it stores no such output");
  for (i = 0; i < net->input_count; i++)
    if (find(inputs, i, inputs[i].name) < i) return damaged(net, "two inputs have one name");
  for (i = 0; i < net->output_count; i++)
    if (find(outputs, i, outputs[i].name) < i) return damaged(net, "two outputs have one name");
  return TILEWRIGHT_OK;
}

static int read_step(tilewright *net, const uint8_t *record, uint32_t ports) {
  uint32_t segment = get32(record);
  if (ports > MAX_PORTS) return damaged(net, "it has more than 1024 tensors");
  if ((uint64_t)get32(record + 4) + get32(record + 8) != ports)
    return damaged(net, "it has tensors of no step");
  net->load_count = get32(record + 4);
  net->store_count = get32(record + 8);
  if (segment >= net->segment_count) return damaged(net, "it runs a stream that is not there");
  net->first = get32(net->segments + SEGMENT_BYTES * (size_t)segment);
  net->count = get32(net->segments + SEGMENT_BYTES * (size_t)segment + 4);
  return TILEWRIGHT_OK;
}

static int read_tables(tilewright *net, const uint64_t at[8], uint32_t port_count) {
  const uint8_t *buffers = net->network + (size_t)at[0], *ports = net->network + (size_t)at[3];
  const uint8_t *tensors = net->network + (size_t)at[4];
  uint64_t tensor_count = (uint64_t)net->input_count + net->output_count;
  uint64_t memory = 0;
  uint32_t i;
  int code = read_step(net, net->network + (size_t)at[2], port_count);
  if (code) return code;
  if (net->buffer_count > MAX_BUFFERS || net->segment_count > MAX_STREAMS)
    return damaged(net, "it has more buffers or streams than there may be");
  if (tensor_count > MAX_PORTS) return damaged(net, "it has more than 1024 inputs and outputs");
  net->buffers = calloc((size_t)net->buffer_count + 1, sizeof *net->buffers);
  net->ports = calloc((size_t)port_count + 1, sizeof *net->ports);
  net->tensors = calloc((size_t)tensor_count + 1, sizeof *net->tensors);
  if (!net->buffers || !net->ports || !net->tensors)
    return no_memory(net, "its tables", net->buffer_count + port_count + tensor_count);
  for (i = 0; !code && i < net->buffer_count; i++)
    code = read_buffer(net, buffers + BUFFER_BYTES * (size_t)i, &net->buffers[i]);
  for (i = 0; !code && i < net->buffer_count; i++) memory += net->buffers[i].bytes;
  if (!code && memory > MAX_MEMORY_BYTES)
    code = damaged(net, "its buffers are larger than the memory of a board");
  for (i = 0; !code && i < port_count; i++)
    code = read_port(net, ports + PORT_BYTES * (size_t)i, &net->ports[i], i < net->load_count);
  for (i = 0; !code && i < tensor_count; i++)
    code = read_tensor(net, tensors + TENSOR_BYTES * (size_t)i, &net->tensors[i]);
  if (!code && (get32(net->network + 100) != net->text_at ||
                (uint64_t)net->text_at + get32(net->network + 104) + 1 != net->text_bytes))
    code = damaged(net, "it has texts of nothing");
  return code ? code : match_names(net);
}

/* The file is whole, of this version, and one this runtime can run. */
static int read_head(tilewright *net, size_t bytes) {
  const uint8_t *at = net->network;
  uint8_t digest[DIGEST_BYTES];
  if (bytes < HEADER_BYTES + DIGEST_BYTES || memcmp(at, MAGIC, 8))
    return damaged(net, "it does not begin like one");
  sha256(at, bytes - DIGEST_BYTES, digest);
  if (memcmp(digest, at + bytes - DIGEST_BYTES, DIGEST_BYTES))
    return damaged(net, "it has other bytes than when it was built");
  if (get32(at + 8) != FORMAT_VERSION)
    return fail(net, TILEWRIGHT_UNSUPPORTED,
                "the artifact is of version %lu, this runtime reads version %d; take the runtime of "
                "the tilewright that built it", (unsigned long)get32(at + 8), FORMAT_VERSION);
  return TILEWRIGHT_OK;
}

static int refuse_host_work(tilewright *net) {
  const char *why = "the host must compute parts of it";
  if (get32(net->network + 104) && read_text(net, net->network + 100, &why))
    return TILEWRIGHT_BAD_ARTIFACT;
  return fail(net, TILEWRIGHT_UNSUPPORTED,
              "this network cannot run without Python: %s; build it with --bare to see what to "
              "change", why);
}

static int read_network(tilewright *net, const char *folder) {
  size_t bytes = 0;
  uint64_t at[8];
  const uint8_t *head;
  int code = read_file(net, folder, "network.bin", MAX_NETWORK_BYTES, &net->network, &bytes);
  if (!code) code = read_head(net, bytes);
  if (code) return code;
  head = net->network;
  net->buffer_count = get32(head + 68);
  net->segment_count = get32(head + 72);
  net->input_count = get32(head + 84);
  net->output_count = get32(head + 88);
  net->relocation_count = get32(head + 92);
  net->text_bytes = get32(head + 96);
  /* Where each table starts; sums of products of 32-bit numbers by small ones stay in 64 bits. */
  at[0] = HEADER_BYTES;
  at[1] = at[0] + (uint64_t)BUFFER_BYTES * net->buffer_count;
  at[2] = at[1] + (uint64_t)SEGMENT_BYTES * net->segment_count;
  at[3] = at[2] + (uint64_t)STEP_BYTES * get32(head + 76);
  at[4] = at[3] + (uint64_t)PORT_BYTES * get32(head + 80);
  at[5] = at[4] + (uint64_t)TENSOR_BYTES * ((uint64_t)net->input_count + net->output_count);
  at[6] = at[5] + (uint64_t)RELOCATION_BYTES * net->relocation_count;
  at[7] = at[6] + net->text_bytes;
  if (at[7] + DIGEST_BYTES != bytes || get64(head + 16) != bytes)
    return damaged(net, "its tables have other sizes than it says");
  net->segments = head + (size_t)at[1];
  net->relocations = head + (size_t)at[5];
  net->text = (const char *)(head + (size_t)at[6]);
  read_datafile(head + 112, head + 136, &net->instructions);
  read_datafile(head + 120, head + 168, &net->uops);
  read_datafile(head + 128, head + 200, &net->constants);
  if (!(get32(head + 12) & FLAG_BARE) || get32(head + 76) != 1) return refuse_host_work(net);
  code = check_machine(net, head + 24);
  if (code) return code;
  return read_tables(net, at, get32(head + 80));
}

/* -- the stream -------------------------------------------------------------------------------- */

/* That a transfer stays in the buffer its relocation names. */
static int check_transfer(tilewright *net, const uint8_t *insn, const uint8_t *relocation) {
  uint64_t low = get64(insn), high = get64(insn + 8), reach = 0;
  uint32_t memory = get32(relocation + 4), number = get32(relocation + 8);
  uint64_t offset = get32(relocation + 12);
  uint64_t rows = high & 0xffff, columns = high >> 16 & 0xffff, pitch = high >> 32 & 0xffff;
  int is_store = (low & 7) == OPCODE_STORE;
  const buffer_t *buffer;
  if (memory != (low >> 7 & 7) || memory > MEMORY_OUT || is_store != (memory == MEMORY_OUT))
    return damaged(net, "a relocation is of another type of memory than its instruction");
  if (number >= net->buffer_count) return damaged(net, "a relocation names no buffer");
  buffer = &net->buffers[number];
  if (is_store ? buffer->kind != KIND_ACTIVATIONS
               : (memory == MEMORY_UOP) != (buffer->kind == KIND_UOPS))
    return damaged(net, "an instruction reads or writes a buffer of another kind");
  if (offset != (low >> 26 & 0xffffffff))
    return damaged(net, "a relocation has another offset than its instruction");
  /* By its fields it reaches nowhere; hardware counts rows from 65,535 down, or never ends. */
  if (!rows && columns) return damaged(net, "an instruction moves columns of no rows");
  if (columns) reach = (rows - 1) * pitch + columns;
  if ((offset + reach) * ELEMENT_BYTES[memory] > buffer->bytes)
    return damaged(net, "an instruction reaches beyond its buffer");
  return TILEWRIGHT_OK;
}

/* That every transfer has its relocation, in order, and each segment its only FINISH at its end. */
static int check_stream(tilewright *net, const uint8_t *insns) {
  uint32_t count = (uint32_t)(net->instructions.bytes / INSTRUCTION_BYTES), at, next = 0, i;
  int code;
  for (at = 0; at < count; at++) {
    const uint8_t *insn = insns + (size_t)at * INSTRUCTION_BYTES;
    const uint8_t *relocation = net->relocations + (size_t)next * RELOCATION_BYTES;
    uint32_t opcode = insn[0] & 7u;
    int moves = opcode == OPCODE_LOAD || opcode == OPCODE_STORE;
    if (next < net->relocation_count && get32(relocation) == at) {
      if (!moves) return damaged(net, "a relocation names an instruction that moves no data");
      code = check_transfer(net, insn, relocation);
      if (code) return code;
      next++;
    } else if (moves && (get64(insn + 8) >> 16 & 0xffff)) {
      return damaged(net, "an instruction that moves data has no relocation");
    }
    if (at >= net->first && at - net->first < net->count &&
        (opcode == OPCODE_FINISH) != (at - net->first == net->count - 1))
      return damaged(net, "a stream does not end where it finishes");
  }
  if (next != net->relocation_count) return damaged(net, "its relocations are out of order");
  for (i = 0; i < net->segment_count; i++) {
    uint32_t first = get32(net->segments + SEGMENT_BYTES * (size_t)i);
    uint32_t length = get32(net->segments + SEGMENT_BYTES * (size_t)i + 4);
    if (!length || first > count || length > count - first)
      return damaged(net, "a stream is longer than its file");
  }
  return TILEWRIGHT_OK;
}

/* Memory of the driver, with an address that an instruction can hold. */
static int allocate(tilewright *net, const char *what, uint64_t bytes, void **memory,
                    uint64_t *address) {
  *memory = VTAMemAlloc((size_t)bytes, VTA_NOT_CACHED);
  /* Some allocators of contiguous memory hand on what mmap gives when there is none. */
  if ((uintptr_t)*memory == UINTPTR_MAX) *memory = NULL;
  if (!*memory)
    return fail(net, TILEWRIGHT_NO_MEMORY, "the driver gave no memory for %s (%lu bytes)", what,
                (unsigned long)bytes);
  *address = (uint64_t)VTAMemGetPhyAddr(*memory);
  if (!*address || *address >= ADDRESSES || bytes > ADDRESSES - *address)
    return fail(net, TILEWRIGHT_NO_DEVICE,
                "the driver put %s at 0x%lx, where VTA's 32-bit addresses do not reach", what,
                (unsigned long)*address);
  return TILEWRIGHT_OK;
}

/* Adds to the address field of each transfer where its buffer lies. */
static int relocate(tilewright *net, uint8_t *insns) {
  uint32_t i;
  for (i = 0; i < net->relocation_count; i++) {
    const uint8_t *relocation = net->relocations + (size_t)i * RELOCATION_BYTES;
    uint8_t *insn = insns + (size_t)get32(relocation) * INSTRUCTION_BYTES;
    const buffer_t *buffer = &net->buffers[get32(relocation + 8)];
    uint64_t element = ELEMENT_BYTES[get32(relocation + 4)], low = get64(insn);
    uint64_t base = buffer->address / element + get32(relocation + 12);
    if (buffer->address % element)
      return fail(net, TILEWRIGHT_NO_DEVICE,
                  "the driver put '%s' at 0x%lx, which is no multiple of %lu bytes", buffer->name,
                  (unsigned long)buffer->address, (unsigned long)element);
    low = (low & ~((uint64_t)0xffffffff << 26)) | (base & 0xffffffff) << 26;
    put32(insn, (uint32_t)(low & 0xffffffff));
    put32(insn + 4, (uint32_t)(low >> 32));
  }
  return TILEWRIGHT_OK;
}

static int load_stream(tilewright *net, uint8_t *insns) {
  uint64_t bytes = (uint64_t)net->count * INSTRUCTION_BYTES;
  int code = check_stream(net, insns);
  uint32_t i;
  if (!code && bytes > MAX_BUFFER_BYTES) code = damaged(net, "a stream is larger than a buffer");
  for (i = 0; !code && i < net->buffer_count; i++) {
    buffer_t *buffer = &net->buffers[i];
    code = allocate(net, buffer->name, buffer->bytes, &buffer->memory, &buffer->address);
  }
  if (!code) code = allocate(net, "instructions", bytes, &net->stream, &net->stream_address);
  if (!code) code = relocate(net, insns);
  if (!code)
    VTAMemCopyFromHost(net->stream, insns + (size_t)net->first * INSTRUCTION_BYTES, (size_t)bytes);
  return code;
}

static int load_instructions(tilewright *net, const char *folder) {
  uint8_t *insns = NULL;
  int code;
  if (net->instructions.bytes % INSTRUCTION_BYTES)
    return damaged(net, "an instruction is cut");
  code = read_data(net, folder, "instructions.bin", &net->instructions, &insns);
  if (!code) code = load_stream(net, insns);
  free(insns);
  return code;
}

static int load_buffers(tilewright *net, const char *folder, const char *name, uint32_t kind,
                        const datafile_t *expected) {
  uint8_t *data = NULL;
  uint32_t i;
  int code = read_data(net, folder, name, expected, &data);
  for (i = 0; !code && i < net->buffer_count; i++) {
    const buffer_t *buffer = &net->buffers[i];
    if (buffer->kind == kind)
      VTAMemCopyFromHost(buffer->memory, data + (size_t)buffer->offset, (size_t)buffer->bytes);
  }
  free(data);
  return code;
}

/* Host memory for packed inputs, and for one tensor on its way. */
static int stage(tilewright *net) {
  size_t largest = 1;
  uint32_t i;
  for (i = 0; i < net->load_count + net->store_count; i++) {
    port_t *port = &net->ports[i];
    if (port->elements > largest) largest = port->elements;
    if (port->packed_bytes > largest) largest = port->packed_bytes;
    port->in_image = net->image_bytes;
    net->image_bytes += port->packed_bytes;
    if (i < net->load_count) {
      port->staging = malloc(port->packed_bytes);
      if (!port->staging) return no_memory(net, port->name, port->packed_bytes);
    }
  }
  net->scratch = malloc(largest);
  return net->scratch ? TILEWRIGHT_OK : no_memory(net, "tensors", largest);
}

static int open_all(tilewright *net, const char *folder) {
  int code;
  if (!is_little_endian())
    return fail(net, TILEWRIGHT_UNSUPPORTED, "this runtime is for little-endian hosts");
  code = read_network(net, folder);
  if (!code) code = stage(net);
  if (code) return code;
  net->device = VTADeviceAlloc();
  if (!net->device)
    return fail(net, TILEWRIGHT_NO_DEVICE,
                "the driver gave no device; is the FPGA programmed, and are you root?");
  code = load_instructions(net, folder);
  if (!code) code = load_buffers(net, folder, "uops.bin", KIND_UOPS, &net->uops);
  if (!code) code = load_buffers(net, folder, "constants.bin", KIND_CONSTANTS, &net->constants);
  return code;
}

/* Gives back everything but the message. */
static void release(tilewright *net) {
  uint32_t i;
  if (net->stream) VTAMemFree(net->stream);
  for (i = 0; net->buffers && i < net->buffer_count; i++)
    if (net->buffers[i].memory) VTAMemFree(net->buffers[i].memory);
  for (i = 0; net->ports && i < net->load_count; i++) free(net->ports[i].staging);
  if (net->device) VTADeviceFree(net->device);
  free(net->buffers);
  free(net->ports);
  free(net->tensors);
  free(net->scratch);
  free(net->network);
  net->stream = net->device = NULL;
  net->buffers = NULL;
  net->ports = NULL;
  net->tensors = NULL;
  net->scratch = NULL;
  net->network = NULL;
  net->load_count = net->store_count = net->buffer_count = 0;
  net->input_count = net->output_count = 0;
}

int tilewright_open(const char *folder, tilewright **out) {
  int code;
  if (!out) return TILEWRIGHT_BAD_ARGUMENT;
  *out = calloc(1, sizeof **out);
  if (!*out) return TILEWRIGHT_NO_MEMORY;
  (*out)->patience = FIRST_PATIENCE;
  if (!folder) return fail(*out, TILEWRIGHT_BAD_ARGUMENT, "the folder's name is NULL");
  code = open_all(*out, folder);
  if (code) release(*out);
  return code;
}

void tilewright_close(tilewright *net) {
  if (!net) return;
  release(net);
  free(net);
}

const char *tilewright_message(const tilewright *net) {
  return net ? net->message : "there is no network: no memory for it, or it was never opened";
}

/* -- inputs ------------------------------------------------------------------------------------ */

static int8_t saturated(int value) {
  return (int8_t)(value < INT8_MIN ? INT8_MIN : value > INT8_MAX ? INT8_MAX : value);
}

/* Of a count of steps: the nearest integer, halves to the even one, plus the zero point. */
static int8_t rounded(float steps, int zero_point) {
  int whole;
  float rest;
  /* Beyond int8 with any zero point, infinities among them. */
  if (steps <= -256) return INT8_MIN;
  if (steps >= 256) return INT8_MAX;
  whole = (int)steps;
  rest = steps - (float)whole;
  if (rest > 0.5f || (rest == 0.5f && (whole & 1))) whole++;
  if (rest < -0.5f || (rest == -0.5f && (whole & 1))) whole--;
  return saturated(whole + zero_point);
}

/* uint8 is int8 and 128 more: the same bits but for the highest. */
static void flip_signs(int8_t *values, size_t count) {
  uint8_t *bits = (uint8_t *)values;
  size_t i;
  for (i = 0; i < count; i++) bits[i] ^= 0x80;
}

/* The int8 values of a host's tensor, in `out` (elements). */
static int quantise(tilewright *net, const port_t *port, const void *data, int8_t *out) {
  const uint8_t *from = data;
  size_t i;
  if (port->type != TILEWRIGHT_FLOAT32) {
    memcpy(out, data, port->bytes);
    if (port->type == TILEWRIGHT_UINT8) flip_signs(out, port->elements);
    return TILEWRIGHT_OK;
  }
  for (i = 0; i < port->elements; i++) {
    uint32_t bits;
    float value, steps;
    memcpy(&bits, from + 4 * i, 4);
    memcpy(&value, from + 4 * i, 4);
    /* By its bits: compilers may be told that there is no such thing. */
    if ((bits & 0x7fffffffu) > 0x7f800000u)
      return fail(net, TILEWRIGHT_BAD_VALUE, "element %lu of input '%s' is not a number",
                  (unsigned long)i, port->name);
    steps = value / port->step;
    out[i] = rounded(steps, port->zero_point);
  }
  return TILEWRIGHT_OK;
}

/* Where channel `c` of pixel (y, x) of item `n` lies. */
static size_t packed_at(const port_t *p, uint64_t n, uint64_t c, uint64_t y, uint64_t x) {
  uint64_t item = n / p->batch;
  if (p->form == FORM_COLUMN) {
    y = item;
    item = 0;
  }
  item = ((item * p->blocks + c / p->block) * p->packed_h + y) * p->packed_w + x;
  return (size_t)((item * p->batch + n % p->batch) * p->block + c % p->block);
}

static void pack(const port_t *p, const int8_t *values, int8_t *packed) {
  uint64_t n, c, y, x;
  memset(packed, 0, p->packed_bytes);
  for (n = 0; n < p->n; n++)
    for (c = 0; c < p->c; c++)
      for (y = 0; y < p->h; y++)
        for (x = 0; x < p->w; x++) packed[packed_at(p, n, c, y, x)] = *values++;
}

/* The pixels of the image that one tap of the patches sees, as channels `first` and up. */
static void pack_tap(const port_t *p, const int8_t *values, int8_t *packed, uint64_t tap_y,
                     uint64_t tap_x) {
  const unfold_t *u = &p->unfold;
  uint64_t first = (tap_y * u->cols + tap_x) * p->c, n, c, i, j;
  for (n = 0; n < p->n; n++)
    for (c = 0; c < p->c; c++)
      for (i = 0; i < u->height; i++) {
        uint64_t y = i * u->stride_h + tap_y;
        if (y < u->pad_top || y - u->pad_top >= p->h) continue;
        for (j = 0; j < u->width; j++) {
          uint64_t x = j * u->stride_w + tap_x, from;
          if (x < u->pad_left || x - u->pad_left >= p->w) continue;
          from = ((n * p->c + c) * p->h + (y - u->pad_top)) * p->w + (x - u->pad_left);
          packed[packed_at(p, n, first + c, i, j)] = values[(size_t)from];
        }
      }
}

static void pack_unfolded(const port_t *p, const int8_t *values, int8_t *packed) {
  uint64_t y, x;
  memset(packed, 0, p->packed_bytes);
  for (y = 0; y < p->unfold.rows; y++)
    for (x = 0; x < p->unfold.cols; x++) pack_tap(p, values, packed, y, x);
}

static const tensor_t *input_of(const tilewright *net, size_t index) {
  return net && index < net->input_count ? &net->tensors[index] : NULL;
}

static const tensor_t *output_of(const tilewright *net, size_t index) {
  return net && index < net->output_count ? &net->tensors[net->input_count + index] : NULL;
}

static int check_tensor(tilewright *net, const tensor_t *tensor, const char *side, size_t index,
                        const void *data, size_t bytes) {
  if (!net) return TILEWRIGHT_BAD_ARGUMENT;
  if (!tensor)
    return fail(net, TILEWRIGHT_BAD_ARGUMENT, "there is no %s %lu", side, (unsigned long)index);
  if (!data) return fail(net, TILEWRIGHT_BAD_ARGUMENT, "%s '%s' is NULL", side, tensor->name);
  if (bytes != tensor->bytes)
    return fail(net, TILEWRIGHT_BAD_ARGUMENT, "%s '%s' has %lu bytes, not %lu", side, tensor->name,
                (unsigned long)tensor->bytes, (unsigned long)bytes);
  return TILEWRIGHT_OK;
}

/* A tensor of the host, packed as a load has it, by way of `scratch`. */
static int pack_port(tilewright *net, const port_t *port, const void *data, int8_t *packed) {
  int code = quantise(net, port, data, net->scratch);
  if (code) return code;
  if (port->unfolded) {
    pack_unfolded(port, net->scratch, packed);
  } else {
    pack(port, net->scratch, packed);
  }
  return TILEWRIGHT_OK;
}

int tilewright_set_input(tilewright *net, size_t index, const void *data, size_t bytes) {
  uint32_t i;
  int code = check_tensor(net, input_of(net, index), "input", index, data, bytes);
  /* Quantised once a load, since scales may differ; a wrong value ends the first of them. */
  for (i = 0; !code && i < net->load_count; i++) {
    port_t *port = &net->ports[i];
    if (port->input != index) continue;
    code = pack_port(net, port, data, port->staging);
    if (!code) port->is_set = 1;
  }
  return code;
}

/* -- running, and outputs ---------------------------------------------------------------------- */

static char *memory_of(const tilewright *net, const port_t *port) {
  return (char *)net->buffers[port->buffer].memory + (size_t)port->offset;
}

/* Runs the stream; the driver's code. */
static int run_stream(tilewright *net) {
  return VTADeviceRun(net->device, (vta_phy_addr_t)net->stream_address, net->count, net->patience);
}

static int timed_out(tilewright *net, int code) {
  return fail(net, TILEWRIGHT_TIME_OUT,
              "the device did not finish (the driver's code is %d); program the FPGA again, with "
              "a bitstream of the machine that the artifact was built for", code);
}

int tilewright_run(tilewright *net) {
  uint32_t i;
  int code;
  if (!net) return TILEWRIGHT_BAD_ARGUMENT;
  if (!net->stream) return fail(net, TILEWRIGHT_BAD_ARGUMENT, "the network could not be opened");
  for (i = 0; i < net->load_count; i++)
    if (!net->ports[i].is_set)
      return fail(net, TILEWRIGHT_BAD_ARGUMENT, "input '%s' was not set", net->ports[i].name);
  net->has_run = 0;
  for (i = 0; i < net->load_count; i++) {
    const port_t *port = &net->ports[i];
    VTAMemCopyFromHost(memory_of(net, port), port->staging, port->packed_bytes);
  }
  code = run_stream(net);
  if (code) return timed_out(net, code);
  net->has_run = 1;
  return TILEWRIGHT_OK;
}

/* An int8 value as the host has it, `*out` behind it afterwards. */
static void give(const port_t *port, int8_t value, uint8_t **out) {
  if (port->type == TILEWRIGHT_FLOAT32) {
    float real = (float)(value - port->zero_point) * port->step;
    memcpy(*out, &real, 4);
    *out += 4;
    return;
  }
  if (port->type == TILEWRIGHT_UINT8) flip_signs(&value, 1);
  memcpy((*out)++, &value, 1);
}

/* The tensor of a store as the host has it, out of its packed values. */
static void unpack(const port_t *p, const int8_t *packed, void *data) {
  uint8_t *out = data;
  uint64_t n, c, y, x;
  for (n = 0; n < p->n; n++)
    for (c = 0; c < p->c; c++)
      for (y = 0; y < p->h; y++)
        for (x = 0; x < p->w; x++) give(p, packed[packed_at(p, n, c, y, x)], &out);
}

int tilewright_get_output(tilewright *net, size_t index, void *data, size_t bytes) {
  const tensor_t *output = output_of(net, index);
  int code = check_tensor(net, output, "output", index, data, bytes);
  const port_t *p;
  if (code) return code;
  if (!net->has_run) return fail(net, TILEWRIGHT_BAD_ARGUMENT, "the network has not run yet");
  p = output->port;
  VTAMemCopyToHost(net->scratch, memory_of(net, p), p->packed_bytes);
  unpack(p, net->scratch, data);
  return TILEWRIGHT_OK;
}

/* -- images, for pipeline.c -------------------------------------------------------------------- */

int tilewright_begin_images(tilewright *net, size_t *image_bytes) {
  if (!net->stream) return fail(net, TILEWRIGHT_BAD_ARGUMENT, "the network could not be opened");
  net->has_run = 0;
  *image_bytes = net->image_bytes;
  return TILEWRIGHT_OK;
}

int tilewright_pack_image(tilewright *net, size_t index, const void *data, int8_t *image) {
  uint32_t i;
  int code = TILEWRIGHT_OK;
  for (i = 0; !code && i < net->load_count; i++) {
    const port_t *port = &net->ports[i];
    if (port->input == index) code = pack_port(net, port, data, image + port->in_image);
  }
  return code;
}

int tilewright_run_image(tilewright *net, int8_t *image) {
  uint32_t i;
  int code;
  for (i = 0; i < net->load_count; i++) {
    const port_t *port = &net->ports[i];
    VTAMemCopyFromHost(memory_of(net, port), image + port->in_image, port->packed_bytes);
  }
  code = run_stream(net);
  for (i = net->load_count; !code && i < net->load_count + net->store_count; i++) {
    const port_t *port = &net->ports[i];
    VTAMemCopyToHost(image + port->in_image, memory_of(net, port), port->packed_bytes);
  }
  return code;
}

void tilewright_unpack_image(const tilewright *net, size_t index, const int8_t *image,
                             void *data) {
  const port_t *port = output_of(net, index)->port;
  unpack(port, image + port->in_image, data);
}

int tilewright_images_failed(tilewright *net, int code, const char *why, int driver_code) {
  if (code == TILEWRIGHT_TIME_OUT) return timed_out(net, driver_code);
  return fail(net, code, "%s", why);
}

int tilewright_set_patience(tilewright *net, uint32_t looks) {
  if (!net) return TILEWRIGHT_BAD_ARGUMENT;
  net->patience = looks;
  return TILEWRIGHT_OK;
}

/* -- what there is ----------------------------------------------------------------------------- */

size_t tilewright_input_count(const tilewright *net) { return net ? net->input_count : 0; }

size_t tilewright_output_count(const tilewright *net) { return net ? net->output_count : 0; }

static size_t size_of(const tensor_t *tensor, size_t axis) {
  return tensor && axis < tensor->rank ? tensor->shape[axis] : 0;
}

static float step_of(const tensor_t *tensor) {
  return tensor && tensor->port ? tensor->port->step : 0;
}

/* Of the values as they are passed, where those are integers. */
static int zero_point_of(const tensor_t *tensor) {
  if (!tensor || !tensor->port) return 0;
  return tensor->port->zero_point + (tensor->type == TILEWRIGHT_UINT8 ? 128 : 0);
}

const char *tilewright_input_name(const tilewright *net, size_t index) {
  const tensor_t *tensor = input_of(net, index);
  return tensor ? tensor->name : NULL;
}

const char *tilewright_output_name(const tilewright *net, size_t index) {
  const tensor_t *tensor = output_of(net, index);
  return tensor ? tensor->name : NULL;
}

size_t tilewright_input_bytes(const tilewright *net, size_t index) {
  const tensor_t *tensor = input_of(net, index);
  return tensor ? tensor->bytes : 0;
}

size_t tilewright_output_bytes(const tilewright *net, size_t index) {
  const tensor_t *tensor = output_of(net, index);
  return tensor ? tensor->bytes : 0;
}

int tilewright_input_type(const tilewright *net, size_t index) {
  const tensor_t *tensor = input_of(net, index);
  return tensor ? tensor->type : 0;
}

int tilewright_output_type(const tilewright *net, size_t index) {
  const tensor_t *tensor = output_of(net, index);
  return tensor ? tensor->type : 0;
}

float tilewright_input_scale(const tilewright *net, size_t index) {
  return step_of(input_of(net, index));
}

float tilewright_output_scale(const tilewright *net, size_t index) {
  return step_of(output_of(net, index));
}

int tilewright_input_zero_point(const tilewright *net, size_t index) {
  return zero_point_of(input_of(net, index));
}

int tilewright_output_zero_point(const tilewright *net, size_t index) {
  return zero_point_of(output_of(net, index));
}

size_t tilewright_input_rank(const tilewright *net, size_t index) {
  const tensor_t *tensor = input_of(net, index);
  return tensor ? tensor->rank : 0;
}

size_t tilewright_output_rank(const tilewright *net, size_t index) {
  const tensor_t *tensor = output_of(net, index);
  return tensor ? tensor->rank : 0;
}

size_t tilewright_input_size(const tilewright *net, size_t index, size_t axis) {
  return size_of(input_of(net, index), axis);
}

size_t tilewright_output_size(const tilewright *net, size_t index, size_t axis) {
  return size_of(output_of(net, index), axis);
}
