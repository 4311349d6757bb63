/* See tilewright_cpu.h. Calls TVM's runtime by its stable C interface (tvm/ffi/c_api.h). */

#include "tilewright_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

#define ALIGNMENT 64
#define CPU 1
#define POOLED 2
#define FASTEST_FIRST 1
#define MOST_INPUTS 64

struct tilewright_library {
  TVMFFIObjectHandle module, machine, main;
  TVMFFIAny result;
};

static __thread char said[1024];

static int fail(const char *text) {
  snprintf(said, sizeof said, "%s", text);
  return -1;
}

/* Moves TVM's own error into `said`. */
static int raised(const char *what) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return fail(what);
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((char *)error + sizeof(TVMFFIObject));
  snprintf(said, sizeof said, "%s: %.*s", what, (int)cell->message.size, cell->message.data);
  TVMFFIObjectDecRef(error);
  return -1;
}

const char *tilewright_library_error(void) { return said; }

static TVMFFIAny of_int(int64_t value) {
  TVMFFIAny any = {.type_index = kTVMFFIInt, .v_int64 = value};
  return any;
}

static TVMFFIAny of_text(const char *text) {
  TVMFFIAny any = {.type_index = kTVMFFIRawStr, .v_c_str = text};
  return any;
}

static TVMFFIAny of_object(int32_t kind, TVMFFIObjectHandle object) {
  TVMFFIAny any = {.type_index = kind, .v_obj = (TVMFFIObject *)object};
  return any;
}

static void drop(TVMFFIAny *any) {
  if (any->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(any->v_obj);
  memset(any, 0, sizeof *any);
}

/* Calls a function that TVM knows by name. */
static int call_global(const char *name, TVMFFIAny *args, int count, TVMFFIAny *result) {
  TVMFFIByteArray text = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  memset(result, 0, sizeof *result);
  if (TVMFFIFunctionGetGlobal(&text, &function) || !function) return raised(name);
  int status = TVMFFIFunctionCall(function, args, count, result);
  TVMFFIObjectDecRef(function);
  return status ? raised(name) : 0;
}

static int function_of(TVMFFIObjectHandle module, const char *name, TVMFFIObjectHandle *out) {
  TVMFFIAny args[3] = {of_object(kTVMFFIModule, module), of_text(name),
                       {.type_index = kTVMFFIBool, .v_int64 = 1}};
  TVMFFIAny result;
  if (call_global("ffi.ModuleGetFunction", args, 3, &result)) return -1;
  if (result.type_index != kTVMFFIFunction) {
    drop(&result);
    snprintf(said, sizeof said, "the library has no function %s", name);
    return -1;
  }
  *out = result.v_obj;
  return 0;
}

static int call(TVMFFIObjectHandle function, TVMFFIAny *args, int count, TVMFFIAny *result,
                const char *what) {
  memset(result, 0, sizeof *result);
  return TVMFFIFunctionCall(function, args, count, result) ? raised(what) : 0;
}

static int start(tilewright_library *net, const char *path, int threads) {
  TVMFFIAny result, file[1] = {of_text(path)};
  if (call_global("ffi.ModuleLoadFromFile", file, 1, &result)) return -1;
  net->module = result.v_obj;
  TVMFFIObjectHandle function = NULL;
  if (function_of(net->module, "vm_load_executable", &function)) return -1;
  int status = call(function, NULL, 0, &result, "vm_load_executable");
  TVMFFIObjectDecRef(function);
  if (status) return -1;
  net->machine = result.v_obj;
  if (function_of(net->machine, "vm_initialization", &function)) return -1;
  TVMFFIAny device[3] = {of_int(CPU), of_int(0), of_int(POOLED)};
  status = call(function, device, 3, &result, "vm_initialization");
  TVMFFIObjectDecRef(function);
  if (status) return -1;
  drop(&result);
  TVMFFIAny pool[2] = {of_int(FASTEST_FIRST), of_int(threads)};
  if (call_global("runtime.config_threadpool", pool, 2, &result)) return -1;
  drop(&result);
  return function_of(net->machine, "main", &net->main);
}

int tilewright_library_open(const char *network_so, int threads, tilewright_library **out) {
  *out = NULL;
  if (threads < 1) return fail("a library computes with one thread or more");
  tilewright_library *net = calloc(1, sizeof *net);
  if (!net) return fail("there is not enough memory");
  if (start(net, network_so, threads)) {
    tilewright_library_close(net);
    return -1;
  }
  *out = net;
  return 0;
}

static void free_tensor(DLManagedTensor *tensor) {
  free(tensor->manager_ctx);
  free(tensor);
}

static const DLDataType types[] = {
    [TILEWRIGHT_FLOAT32] = {kDLFloat, 32, 1}, [TILEWRIGHT_INT8] = {kDLInt, 8, 1},
    [TILEWRIGHT_UINT8] = {kDLUInt, 8, 1},     [TILEWRIGHT_INT32] = {kDLInt, 32, 1},
    [TILEWRIGHT_INT64] = {kDLInt, 64, 1},     [TILEWRIGHT_BOOL] = {kDLBool, 8, 1},
};

/* TVM's view of an input, of a copy where it does not lie as kernels want it. */
static int wrap(const tilewright_tensor *given, TVMFFIAny *out) {
  if (given->axes < 0 || given->axes > TILEWRIGHT_MOST_AXES || given->dtype < 0 ||
      given->dtype >= TILEWRIGHT_OTHER || !given->data)
    return fail("an input has no data, too many axes or an unknown type");
  size_t bytes = types[given->dtype].bits / 8;
  for (int axis = 0; axis < given->axes; axis++) {
    if (given->shape[axis] < 0) return fail("an input has a negative size");
    bytes *= (size_t)given->shape[axis];
  }
  DLManagedTensor *tensor = calloc(1, sizeof *tensor);
  if (!tensor) return fail("there is not enough memory");
  tensor->dl_tensor.data = given->data;
  if ((uintptr_t)given->data % ALIGNMENT) {
    size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *copy = aligned_alloc(ALIGNMENT, room ? room : ALIGNMENT);
    if (!copy) {
      free(tensor);
      return fail("there is not enough memory");
    }
    tensor->dl_tensor.data = tensor->manager_ctx = memcpy(copy, given->data, bytes);
  }
  tensor->dl_tensor.device.device_type = kDLCPU;
  tensor->dl_tensor.ndim = given->axes;
  tensor->dl_tensor.dtype = types[given->dtype];
  tensor->dl_tensor.shape = (int64_t *)given->shape;
  tensor->deleter = free_tensor;
  TVMFFIObjectHandle handle = NULL;
  if (TVMFFITensorFromDLPack(tensor, ALIGNMENT, 1, &handle)) {
    free_tensor(tensor);
    return raised("an input");
  }
  *out = of_object(kTVMFFITensor, handle);
  return 0;
}

static int describe(const TVMFFIAny *found, tilewright_tensor *out) {
  if (found->type_index != kTVMFFITensor) return fail("an output is no tensor");
  const DLTensor *tensor = (const DLTensor *)((char *)found->v_obj + sizeof(TVMFFIObject));
  if (tensor->ndim > TILEWRIGHT_MOST_AXES) return fail("an output has too many axes");
  memset(out, 0, sizeof *out);
  out->data = (char *)tensor->data + tensor->byte_offset;
  out->axes = tensor->ndim;
  for (int axis = 0; axis < tensor->ndim; axis++) out->shape[axis] = tensor->shape[axis];
  out->dtype = TILEWRIGHT_OTHER;
  for (int kind = 0; kind < TILEWRIGHT_OTHER; kind++)
    if (tensor->dtype.code == types[kind].code && tensor->dtype.bits == types[kind].bits &&
        tensor->dtype.lanes == 1)
      out->dtype = (tilewright_dtype)kind;
  return 0;
}

static int give(tilewright_library *net, tilewright_tensor *outputs, int count) {
  if (net->result.type_index == kTVMFFITensor)
    return count > 1 ? fail("the network has one output") : count ? describe(&net->result, outputs) : 0;
  if (net->result.type_index != kTVMFFIArray) return fail("the network gives no tensors");
  for (int place = 0; place < count; place++) {
    TVMFFIAny args[2] = {net->result, of_int(place)}, each;
    if (call_global("ffi.ArrayGetItem", args, 2, &each)) return -1;
    int status = describe(&each, &outputs[place]);
    drop(&each); /* the array holds it, too */
    if (status) return -1;
  }
  return 0;
}

int tilewright_library_run(tilewright_library *net, const tilewright_tensor *inputs,
                           int input_count, tilewright_tensor *outputs, int output_count) {
  TVMFFIAny args[MOST_INPUTS];
  int wrapped = 0, status = 0;
  if (input_count < 0 || input_count > MOST_INPUTS) return fail("there are too many inputs");
  drop(&net->result);
  while (!status && wrapped < input_count) {
    status = wrap(&inputs[wrapped], &args[wrapped]);
    wrapped += !status;
  }
  if (!status) status = call(net->main, args, input_count, &net->result, "the network");
  while (wrapped) drop(&args[--wrapped]);
  return status ? -1 : give(net, outputs, output_count);
}

void tilewright_library_close(tilewright_library *net) {
  if (!net) return;
  drop(&net->result);
  if (net->main) TVMFFIObjectDecRef(net->main);
  if (net->machine) TVMFFIObjectDecRef(net->machine);
  if (net->module) TVMFFIObjectDecRef(net->module);
  free(net);
}
