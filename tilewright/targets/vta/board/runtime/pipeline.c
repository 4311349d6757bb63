/* Runs a network on successive images with two threads: the caller's packs and unpacks on the CPU
 * while another has the device. Between them is a ring of images, as many as may be in flight.
 *
 * Image k lies in place k modulo `places`. `packed`, `ran` and `unpacked` count images that a thread
 * has done with: unpacked <= ran <= packed <= unpacked + places. A thread writes an image's memory
 * while the other's count says that it has not begun with it, or is done with it.
 */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>

#include "images.h"

typedef struct {
  tilewright *net;
  int8_t *images;
  size_t image_bytes, places, count;
  size_t packed, ran, unpacked;
  int stopped, driver_code; /* a thread has failed; the driver's code if it was the device's */
  pthread_mutex_t lock;     /* of the counts and of the two above */
  pthread_cond_t changed;
} ring_t;

static int8_t *image_at(const ring_t *ring, size_t image) {
  return ring->images + image % ring->places * ring->image_bytes;
}

static void *run_device(void *argument) {
  ring_t *ring = argument;
  pthread_mutex_lock(&ring->lock);
  while (!ring->stopped && ring->ran < ring->count) {
    if (ring->ran == ring->packed) {
      pthread_cond_wait(&ring->changed, &ring->lock);
    } else {
      int8_t *image = image_at(ring, ring->ran);
      int code;
      pthread_mutex_unlock(&ring->lock);
      code = tilewright_run_image(ring->net, image);
      pthread_mutex_lock(&ring->lock);
      if (code) {
        ring->stopped = 1;
        ring->driver_code = code;
      } else {
        ring->ran++;
      }
      pthread_cond_broadcast(&ring->changed);
    }
  }
  pthread_mutex_unlock(&ring->lock);
  return NULL;
}

static int read_image(const ring_t *ring, const tilewright_images *io, void *tensor) {
  tilewright *net = ring->net;
  int8_t *image = image_at(ring, ring->packed);
  size_t i;
  for (i = 0; i < tilewright_input_count(net); i++) {
    int code;
    if (io->read(io->context, ring->packed, i, tensor, tilewright_input_bytes(net, i)))
      return tilewright_images_failed(net, TILEWRIGHT_STOPPED, "reading an image failed", 0);
    code = tilewright_pack_image(net, i, tensor, image);
    if (code) return code;
  }
  return TILEWRIGHT_OK;
}

static int write_image(const ring_t *ring, const tilewright_images *io, void *tensor) {
  tilewright *net = ring->net;
  size_t i;
  for (i = 0; i < tilewright_output_count(net); i++) {
    tilewright_unpack_image(net, i, image_at(ring, ring->unpacked), tensor);
    if (io->write(io->context, ring->unpacked, i, tensor, tilewright_output_bytes(net, i)))
      return tilewright_images_failed(net, TILEWRIGHT_STOPPED, "writing an output failed", 0);
  }
  return TILEWRIGHT_OK;
}

/* The CPU's part: what the device is done with first, so that its place is free again. */
static int run_cpu(ring_t *ring, const tilewright_images *io, void *tensor) {
  int code = TILEWRIGHT_OK;
  pthread_mutex_lock(&ring->lock);
  while (!code && !ring->stopped && ring->unpacked < ring->count) {
    int is_done = ring->unpacked < ring->ran;
    int has_place = ring->packed < ring->count && ring->packed - ring->unpacked < ring->places;
    if (!is_done && !has_place) {
      pthread_cond_wait(&ring->changed, &ring->lock);
      continue;
    }
    pthread_mutex_unlock(&ring->lock);
    code = is_done ? write_image(ring, io, tensor) : read_image(ring, io, tensor);
    pthread_mutex_lock(&ring->lock);
    if (code) {
      ring->stopped = 1;
    } else if (is_done) {
      ring->unpacked++;
    } else {
      ring->packed++;
    }
    pthread_cond_broadcast(&ring->changed);
  }
  pthread_mutex_unlock(&ring->lock);
  return code;
}

static int run_both(ring_t *ring, const tilewright_images *io, void *tensor) {
  pthread_t device;
  int code;
  if (pthread_mutex_init(&ring->lock, NULL))
    return tilewright_images_failed(ring->net, TILEWRIGHT_NO_MEMORY, "there is no lock", 0);
  if (pthread_cond_init(&ring->changed, NULL)) {
    pthread_mutex_destroy(&ring->lock);
    return tilewright_images_failed(ring->net, TILEWRIGHT_NO_MEMORY, "there is no condition", 0);
  }
  if (pthread_create(&device, NULL, run_device, ring)) {
    code = tilewright_images_failed(ring->net, TILEWRIGHT_NO_MEMORY, "there is no thread", 0);
  } else {
    code = run_cpu(ring, io, tensor);
    pthread_join(device, NULL);
    if (!code && ring->driver_code)
      code = tilewright_images_failed(ring->net, TILEWRIGHT_TIME_OUT, "", ring->driver_code);
  }
  pthread_cond_destroy(&ring->changed);
  pthread_mutex_destroy(&ring->lock);
  return code;
}

static size_t largest_tensor(const tilewright *net) {
  size_t largest = 1, i;
  for (i = 0; i < tilewright_input_count(net); i++)
    if (tilewright_input_bytes(net, i) > largest) largest = tilewright_input_bytes(net, i);
  for (i = 0; i < tilewright_output_count(net); i++)
    if (tilewright_output_bytes(net, i) > largest) largest = tilewright_output_bytes(net, i);
  return largest;
}

int tilewright_run_images(tilewright *net, size_t count, size_t in_flight,
                          const tilewright_images *io) {
  ring_t ring = {0};
  void *tensor;
  int code;
  if (!net) return TILEWRIGHT_BAD_ARGUMENT;
  if (!io || !io->read || !io->write || !in_flight)
    return tilewright_images_failed(net, TILEWRIGHT_BAD_ARGUMENT,
                                    "images are read and written by functions, one or more of them "
                                    "in flight", 0);
  code = tilewright_begin_images(net, &ring.image_bytes);
  if (code) return code;
  ring.net = net;
  ring.count = count;
  ring.places = in_flight < count ? in_flight : count ? count : 1;
  if (ring.image_bytes && ring.places > SIZE_MAX / ring.image_bytes) ring.places = 0;
  ring.images = ring.places ? malloc(ring.places * ring.image_bytes + 1) : NULL;
  tensor = malloc(largest_tensor(net));
  if (ring.images && tensor) {
    code = run_both(&ring, io, tensor);
  } else {
    code = tilewright_images_failed(net, TILEWRIGHT_NO_MEMORY,
                                    "there is no memory for so many images in flight", 0);
  }
  free(ring.images);
  free(tensor);
  return code;
}
