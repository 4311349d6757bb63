/* Runs libraries that `tilewright build --target cpu` made, without Python.

     tilewright_library *net;
     if (tilewright_library_open("art/network.so", 2, &net)) puts(tilewright_library_error());
     tilewright_tensor in = {image, {1, 3, 224, 224}, 4, TILEWRIGHT_FLOAT32}, out;
     if (tilewright_library_run(net, &in, 1, &out, 1)) puts(tilewright_library_error());
     ... out.data, out.shape ...
     tilewright_library_close(net);

   Its weights are mapped from weights.bin, which stays beside it.
   A library is code: open none of strangers. Its digest is in the manifest; nothing here checks it.
   Each thread opens the library for itself. Functions return 0, or -1 after an error.
   A process that was forked goes on with the libraries of the thread that forked. It ends with
   _exit, not with exit, which would wait for threads of TVM that stayed in the parent. */

#ifndef TILEWRIGHT_CPU_H
#define TILEWRIGHT_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TILEWRIGHT_MOST_AXES 16

typedef enum {
  TILEWRIGHT_FLOAT32,
  TILEWRIGHT_INT8,
  TILEWRIGHT_UINT8,
  TILEWRIGHT_INT32,
  TILEWRIGHT_INT64,
  TILEWRIGHT_BOOL,
  TILEWRIGHT_OTHER
} tilewright_dtype;

/* Rows in C order; `axes` of `shape` are used. */
typedef struct {
  void *data;
  int64_t shape[TILEWRIGHT_MOST_AXES];
  int axes;
  tilewright_dtype dtype;
} tilewright_tensor;

typedef struct tilewright_library tilewright_library;

/* Opens a library for the calling thread; `threads` is how many it computes with. */
int tilewright_library_open(const char *network_so, int threads, tilewright_library **out);

/* One inference. Inputs come in the manifest's order; those at a multiple of 64 bytes are read in
   place. Outputs come in the manifest's order; their data are the library's, until the next
   inference. Of fewer `output_count` than there are, the first are given. */
int tilewright_library_run(tilewright_library *library, const tilewright_tensor *inputs,
                           int input_count, tilewright_tensor *outputs, int output_count);

void tilewright_library_close(tilewright_library *library);

/* What went wrong last in the calling thread. */
const char *tilewright_library_error(void);

#ifdef __cplusplus
}
#endif

#endif
