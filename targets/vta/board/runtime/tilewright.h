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
 * Tensors are raw little-endian int8 or float32 values in the model's own shape, the last axis
 * running fastest. A float input is quantised to clip(round(x / 2^exponent), -128, 127), halves to
 * the even neighbour; an int8 output q of a float port is returned as q * 2^exponent.
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
  TILEWRIGHT_BAD_ARTEFACT = 3, /* files that are damaged, cut, or something else */
  TILEWRIGHT_UNSUPPORTED = 4,  /* a network that needs more than this runtime does, or this host */
  TILEWRIGHT_NO_MEMORY = 5,    /* of the host, or of the driver */
  TILEWRIGHT_NO_DEVICE = 6,    /* the driver gave no device, or addresses of no use */
  TILEWRIGHT_TIME_OUT = 7,     /* the device did not finish */
  TILEWRIGHT_BAD_VALUE = 8     /* an input value that is not a number */
};

enum { TILEWRIGHT_INT8 = 1, TILEWRIGHT_FLOAT32 = 2 };

/* Reads the artefact in a folder, checks every byte of it, and puts its programs, micro-ops and
 * weights into memory of the driver, at whatever addresses that gives. After an error `*out` holds
 * the message only, or is NULL when there was no memory for that; close it in any case. */
int tilewright_open(const char *folder, tilewright **out);

/* Gives everything back; NULL is fine. After a time-out, program the FPGA again before the memory is
 * used for anything else: the device may still be writing. */
void tilewright_close(tilewright *net);

/* What went wrong last, in one sentence; empty before anything did. Valid until the next call with
 * the same network. For NULL: that there was no memory. */
const char *tilewright_message(const tilewright *net);

/* Inputs and outputs are numbered from 0, in the order of the manifest. For a number out of range,
 * or NULL: 0, a NULL name, no axes. */
size_t tilewright_input_count(const tilewright *net);
size_t tilewright_output_count(const tilewright *net);
const char *tilewright_input_name(const tilewright *net, size_t index);
const char *tilewright_output_name(const tilewright *net, size_t index);
/* Of the whole tensor, as it is passed. */
size_t tilewright_input_bytes(const tilewright *net, size_t index);
size_t tilewright_output_bytes(const tilewright *net, size_t index);
/* TILEWRIGHT_INT8 or TILEWRIGHT_FLOAT32. */
int tilewright_input_type(const tilewright *net, size_t index);
int tilewright_output_type(const tilewright *net, size_t index);
/* log2 of what one step of the int8 value is worth. */
int tilewright_input_exponent(const tilewright *net, size_t index);
int tilewright_output_exponent(const tilewright *net, size_t index);
/* Axes, and elements along one of them. */
size_t tilewright_input_rank(const tilewright *net, size_t index);
size_t tilewright_output_rank(const tilewright *net, size_t index);
size_t tilewright_input_size(const tilewright *net, size_t index, size_t axis);
size_t tilewright_output_size(const tilewright *net, size_t index, size_t axis);

/* Copies an input; it stays set for all runs that follow. `bytes` must be the tensor's. After an
 * error the former one is still set. */
int tilewright_set_input(tilewright *net, size_t index, const void *data, size_t bytes);

/* Runs the network on its inputs and waits for the end. */
int tilewright_run(tilewright *net);

/* Copies an output of the last run; `bytes` must be the tensor's. */
int tilewright_get_output(tilewright *net, size_t index, void *data, size_t bytes);

/* How often the driver looks whether the device has finished before it gives up; 2^31 at first. */
int tilewright_set_patience(tilewright *net, uint32_t looks);

#ifdef __cplusplus
}
#endif
#endif /* TILEWRIGHT_H_ */
