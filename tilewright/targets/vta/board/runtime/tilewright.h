/* Runs a network that `tilewright build` made on a VTA, through the stock driver.
 *
 *     tilewright *net = NULL;
 *     int code = tilewright_open("art", &net);
 *     if (!code) code = tilewright_set_input(net, 0, pixels, tilewright_input_bytes(net, 0));
 *     if (!code) code = tilewright_run(net);
 *     if (!code) code = tilewright_get_output(net, 0, scores, tilewright_output_bytes(net, 0));
 *     if (code) fprintf(stderr, "%s\n", tilewright_message(net));
 *     tilewright_close(net);
 *
 * Tensors are raw little-endian values in the model's own shape and type, the last axis running
 * fastest. A float input x becomes the int8 value
 *
 *     q = clip(round(x / scale) + zero_point, -128, 127)
 *
 * halves rounded to the even neighbour, and an int8 value q becomes the float output
 *
 *     y = (q - zero_point) * scale
 *
 * both in float32, as ONNX's QuantizeLinear and DequantizeLinear do; the host must round floats to
 * nearest, as C programs do unless they ask for something else. A uint8 tensor is int8 plus 128.
 *
 * Functions that return int give 0 or a TILEWRIGHT_ code; tilewright_message then says what is
 * wrong. Nothing here ends the process, prints, or keeps memory after tilewright_close. One network
 * may be used by one thread at a time; a device runs one network at a time.
 */

#ifndef TILEWRIGHT_H_
#define TILEWRIGHT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tilewright tilewright;

enum {
  TILEWRIGHT_OK = 0,
  TILEWRIGHT_BAD_ARGUMENT = 1, /* a null pointer, a number or size that does not fit, no input yet */
  TILEWRIGHT_BAD_FILE = 2,     /* a file that cannot be read */
  TILEWRIGHT_BAD_ARTIFACT = 3, /* files that are damaged, cut, or something else */
  TILEWRIGHT_UNSUPPORTED = 4,  /* a network that needs more than this runtime does, or this host */
  TILEWRIGHT_NO_MEMORY = 5,    /* of the host, or of the driver */
  TILEWRIGHT_NO_DEVICE = 6,    /* the driver gave no device, or addresses of no use */
  TILEWRIGHT_TIME_OUT = 7,     /* the device did not finish */
  TILEWRIGHT_BAD_VALUE = 8,    /* an input value that is not a number */
  TILEWRIGHT_STOPPED = 9       /* a function of yours that reads or writes images failed */
};

/* Types of elements. Outputs, and inputs that a network reads, are of the first three; one that
 * nothing reads may be of any. */
enum {
  TILEWRIGHT_INT8 = 1,
  TILEWRIGHT_FLOAT32 = 2,
  TILEWRIGHT_UINT8 = 4,
  TILEWRIGHT_INT32 = 3,
  TILEWRIGHT_INT64 = 5,
  TILEWRIGHT_BOOL = 6,
  TILEWRIGHT_FLOAT16 = 7,
  TILEWRIGHT_FLOAT64 = 8,
  TILEWRIGHT_INT16 = 9,
  TILEWRIGHT_UINT16 = 10,
  TILEWRIGHT_UINT32 = 11,
  TILEWRIGHT_UINT64 = 12
};

/* Reads the artifact in a folder, checks every byte of it, and puts its programs, micro-ops and
 * weights into memory of the driver, at whatever addresses that gives. After an error `*out` holds
 * the message only, or is NULL when there was no memory for that; close it in any case. */
int tilewright_open(const char *folder, tilewright **out);

/* Gives everything back; NULL is fine. After a time-out, program the FPGA again before the memory is
 * used for anything else: the device may still be writing. */
void tilewright_close(tilewright *net);

/* What went wrong last, in one sentence; empty before anything did. Valid until the next call with
 * the same network. For NULL: that there was no memory. */
const char *tilewright_message(const tilewright *net);

/* Inputs and outputs are numbered from 0, in the order of the manifest, also those inputs that
 * nothing reads. For a number out of range, or NULL: 0, a NULL name, no axes. */
size_t tilewright_input_count(const tilewright *net);
size_t tilewright_output_count(const tilewright *net);
const char *tilewright_input_name(const tilewright *net, size_t index);
const char *tilewright_output_name(const tilewright *net, size_t index);
/* Of the whole tensor, as it is passed. */
size_t tilewright_input_bytes(const tilewright *net, size_t index);
size_t tilewright_output_bytes(const tilewright *net, size_t index);
/* TILEWRIGHT_INT8 and so on. */
int tilewright_input_type(const tilewright *net, size_t index);
int tilewright_output_type(const tilewright *net, size_t index);
/* What a value stands for: scale * (value - zero_point). Value is what is passed, or the int8 value
 * that a float is quantised to, as above; zero points of uint8 tensors are 0 to 255, of others -128
 * to 127. A float input that layers read in several scales has that of the first of them. 0 for an
 * input that nothing reads. */
float tilewright_input_scale(const tilewright *net, size_t index);
float tilewright_output_scale(const tilewright *net, size_t index);
int tilewright_input_zero_point(const tilewright *net, size_t index);
int tilewright_output_zero_point(const tilewright *net, size_t index);
/* Axes, and elements along one of them. */
size_t tilewright_input_rank(const tilewright *net, size_t index);
size_t tilewright_output_rank(const tilewright *net, size_t index);
size_t tilewright_input_size(const tilewright *net, size_t index, size_t axis);
size_t tilewright_output_size(const tilewright *net, size_t index, size_t axis);

/* Copies an input; it stays set for all runs that follow. `bytes` must be the tensor's. After an
 * error the former one is still set. An input that nothing reads need not be set; if it is, its
 * values do not matter. */
int tilewright_set_input(tilewright *net, size_t index, const void *data, size_t bytes);

/* Runs the network on its inputs and waits for the end. */
int tilewright_run(tilewright *net);

/* Copies an output of the last run; `bytes` must be the tensor's. */
int tilewright_get_output(tilewright *net, size_t index, void *data, size_t bytes);

/* Where successive images come from and their outputs go: called by the thread that calls
 * `tilewright_run_images`, in order, once a tensor; `bytes` are the tensor's. What is not 0 ends the
 * run. */
typedef struct {
  void *context;
  int (*read)(void *context, size_t image, size_t input, void *data, size_t bytes);
  int (*write)(void *context, size_t image, size_t output, const void *data, size_t bytes);
} tilewright_images;

/* Runs the network on `count` images. The caller's thread reads, quantises and packs the next ones,
 * and unpacks and writes the last ones, while a second thread has the device; `in_flight` of them
 * have memory of the host at once: with 2, neither waits for more than the other's work. The
 * device's memory is that of one image. Inputs that were set stay so; outputs have to be computed
 * again. Link with -lpthread. */
int tilewright_run_images(tilewright *net, size_t count, size_t in_flight,
                          const tilewright_images *images);

/* How often the driver looks whether the device has finished before it gives up; 2^31 at first. */
int tilewright_set_patience(tilewright *net, uint32_t looks);

#ifdef __cplusplus
}
#endif
#endif /* TILEWRIGHT_H_ */
