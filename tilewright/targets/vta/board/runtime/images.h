/* What pipeline.c needs of tilewright.c: images that are packed and unpacked while the device has
 * another. No part of the library's interface.
 *
 * An image is `image_bytes` bytes of the host: the packed tensors of all loads and stores. Packing
 * and unpacking belong to one thread, which also sets messages; running may belong to a second one,
 * and leaves the message as it is.
 */

#ifndef TILEWRIGHT_IMAGES_H_
#define TILEWRIGHT_IMAGES_H_

#include <stddef.h>
#include <stdint.h>

#include "tilewright.h"

/* The shared object gives none of these to programs. */
#ifdef __GNUC__
#define HIDDEN __attribute__((visibility("hidden")))
#else
#define HIDDEN
#endif

/* The bytes of an image. Outputs of an earlier run are no longer there. */
HIDDEN int tilewright_begin_images(tilewright *net, size_t *image_bytes);

/* Quantises and packs an input. */
HIDDEN int tilewright_pack_image(tilewright *net, size_t index, const void *data, int8_t *image);

/* Copies the packed inputs to the device's memory, runs the network, and copies its outputs back;
 * gives the driver's code. */
HIDDEN int tilewright_run_image(tilewright *net, int8_t *image);

HIDDEN void tilewright_unpack_image(const tilewright *net, size_t index, const int8_t *image,
                                    void *data);

/* Sets the message; gives the code. `driver_code` is of a time-out. */
HIDDEN int tilewright_images_failed(tilewright *net, int code, const char *why, int driver_code);

#endif /* TILEWRIGHT_IMAGES_H_ */
