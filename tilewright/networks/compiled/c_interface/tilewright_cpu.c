/* See tilewright_cpu.h. Calls TVM's runtime by its stable C interface (tvm/ffi/c_api.h). */

#define _GNU_SOURCE

#include "tilewright_cpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <tvm/ffi/c_api.h>

#define ALIGNMENT 64
#define CPU 1
#define POOLED 2
#define FASTEST_FIRST 1
#define SHARING_CORES (-3)
#define MOST_CORES 1024
#define MOST_INPUTS 64
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#define WEIGHTS "weights.bin"
#define WEIGHTS_MAGIC "TWWEIGHT"
#define WEIGHTS_VERSION 1
#define WEIGHTS_AXES 8

struct tilewright_library {
  TVMFFIObjectHandle module, machine, main;
  TVMFFIAny weights, result; /* weights are an array of tensors, or nothing */
  void *mapped;
  size_t mapped_bytes;
  int threads;
};

/* The beginning of a file of weights, and its row for each of them. */
typedef struct {
  char magic[8];
  uint32_t version, arrays;
} weights_head;

typedef struct {
  uint32_t dtype, axes;
  int64_t shape[WEIGHTS_AXES];
  uint64_t at;
} weights_row;

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

static void free_tensor(DLManagedTensor *tensor) {
  free(tensor->manager_ctx);
  free(tensor);
}

static const DLDataType types[] = {
    [TILEWRIGHT_FLOAT32] = {kDLFloat, 32, 1}, [TILEWRIGHT_INT8] = {kDLInt, 8, 1},
    [TILEWRIGHT_UINT8] = {kDLUInt, 8, 1},     [TILEWRIGHT_INT32] = {kDLInt, 32, 1},
    [TILEWRIGHT_INT64] = {kDLInt, 64, 1},     [TILEWRIGHT_BOOL] = {kDLBool, 8, 1},
};

/* TVM's view of memory, which holds a tensor of this shape; `owned` is freed with it, if any. */
static int view(void *data, const int64_t *shape, int axes, DLDataType type, void *owned,
                TVMFFIAny *out) {
  DLManagedTensor *tensor = calloc(1, sizeof *tensor);
  if (!tensor) {
    free(owned);
    return fail("there is not enough memory");
  }
  tensor->dl_tensor.data = data;
  tensor->dl_tensor.device.device_type = kDLCPU;
  tensor->dl_tensor.ndim = axes;
  tensor->dl_tensor.dtype = type;
  tensor->dl_tensor.shape = (int64_t *)shape;
  tensor->manager_ctx = owned;
  tensor->deleter = free_tensor;
  TVMFFIObjectHandle handle = NULL;
  if (TVMFFITensorFromDLPack(tensor, ALIGNMENT, 1, &handle)) {
    free_tensor(tensor);
    return raised("a tensor");
  }
  *out = of_object(kTVMFFITensor, handle);
  return 0;
}

/* The tensor of a row, which lies in the mapped file. */
static int weight(const tilewright_library *net, const weights_row *row, TVMFFIAny *out) {
  if (row->dtype >= TILEWRIGHT_BOOL || row->axes > WEIGHTS_AXES || row->at % ALIGNMENT ||
      row->at > net->mapped_bytes)
    return fail(WEIGHTS " has an array that does not lie in it");
  size_t left = (net->mapped_bytes - row->at) / (types[row->dtype].bits / 8);
  for (uint32_t axis = 0; axis < row->axes; axis++) {
    if (row->shape[axis] < 1 || (uint64_t)row->shape[axis] > left)
      return fail(WEIGHTS " has an array that does not lie in it");
    left /= (size_t)row->shape[axis];
  }
  return view((char *)net->mapped + row->at, row->shape, (int)row->axes, types[row->dtype], NULL,
              out);
}

static int weights_of(tilewright_library *net) {
  const weights_head *head = net->mapped;
  if (net->mapped_bytes < sizeof *head || memcmp(head->magic, WEIGHTS_MAGIC, sizeof head->magic))
    return fail(WEIGHTS " is no file of weights");
  if (head->version != WEIGHTS_VERSION)
    return fail(WEIGHTS " is of another version; build the network again");
  if (head->arrays > (net->mapped_bytes - sizeof *head) / sizeof(weights_row))
    return fail(WEIGHTS " ends in its table");
  const weights_row *rows = (const weights_row *)(head + 1);
  TVMFFIAny *each = calloc(head->arrays + 1, sizeof *each);
  if (!each) return fail("there is not enough memory");
  int status = 0;
  uint32_t made = 0;
  for (; !status && made < head->arrays; made += !status) status = weight(net, &rows[made], &each[made]);
  if (!status) status = call_global("ffi.Array", each, (int)made, &net->weights);
  while (made) drop(&each[--made]);
  free(each);
  return status;
}

/* Maps the file of weights beside the library, if there is one. */
static int map_weights(tilewright_library *net, const char *network_so) {
  const char *slash = strrchr(network_so, '/');
  size_t folder = slash ? (size_t)(slash - network_so) + 1 : 0;
  char *path = malloc(folder + sizeof WEIGHTS);
  if (!path) return fail("there is not enough memory");
  memcpy(path, network_so, folder);
  memcpy(path + folder, WEIGHTS, sizeof WEIGHTS);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  free(path);
  if (file < 0) return 0;
  struct stat found;
  if (fstat(file, &found) || found.st_size < 1) {
    close(file);
    return fail(WEIGHTS " cannot be read");
  }
  void *mapped = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return fail(WEIGHTS " cannot be mapped");
  net->mapped = mapped;
  net->mapped_bytes = (size_t)found.st_size;
  return weights_of(net);
}

/* Gives the calling thread's pool of TVM so many threads, on all cores of the process: a thread that
   is kept from its core would hold up all. */
static int set_threads(int threads) {
  TVMFFIAny result, args[3] = {of_int(FASTEST_FIRST), of_int(threads)};
  int count = 2;
#ifdef __linux__
  static const int most = MOST_CORES < CPU_SETSIZE ? MOST_CORES : CPU_SETSIZE;
  char names[MOST_CORES][8];
  TVMFFIAny cores[MOST_CORES];
  int found = 0;
  cpu_set_t own;
  if (!sched_getaffinity(0, sizeof own, &own))
    for (int core = 0; core < most; core++)
      if (CPU_ISSET(core, &own)) {
        snprintf(names[found], sizeof names[found], "%d", core);
        cores[found] = of_text(names[found]);
        found++;
      }
  if (found) {
    if (call_global("ffi.Array", cores, found, &args[2])) return -1;
    args[0] = of_int(SHARING_CORES);
    count = 3;
  }
#endif
  int status = call_global("runtime.config_threadpool", args, count, &result);
  if (count == 3) drop(&args[2]);
  if (status) return -1;
  drop(&result);
  return 0;
}

/* A fork copies the calling thread alone. TVM has a pool of threads for each calling thread, and
   would wait for ever for those that stayed in the parent. So in the child, another thread takes the
   place of the one that forked in every inference: it gets a pool of its own. */
static __thread int has_pool, lost_pool;

static struct {
  pthread_mutex_t one_at_a_time, lock;
  pthread_cond_t changed;
  int started;
  struct job *job;
} stand_in = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL};

struct job {
  tilewright_library *net;
  TVMFFIAny *args;
  int count, status, done;
  char said[sizeof said];
};

static void after_fork(void) {
  lost_pool |= has_pool;
  has_pool = 0;
  pthread_mutex_init(&stand_in.one_at_a_time, NULL);
  pthread_mutex_init(&stand_in.lock, NULL);
  pthread_cond_init(&stand_in.changed, NULL);
  stand_in.started = 0;
  stand_in.job = NULL;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static int prepare_pool(int threads) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  if (lost_pool) return 0; /* the thread in its place prepares one */
  has_pool = 1;
  return set_threads(threads);
}

static int infer(tilewright_library *net, TVMFFIAny *args, int count) {
  return call(net->main, args, count, &net->result,
              net->mapped ? "the network" : "the network, without a " WEIGHTS " beside it");
}

static void *stand_in_main(void *nothing) {
  tilewright_library *last = NULL;
  pthread_mutex_lock(&stand_in.lock);
  for (;;) {
    while (!stand_in.job) pthread_cond_wait(&stand_in.changed, &stand_in.lock);
    struct job *job = stand_in.job;
    job->status = job->net == last ? 0 : prepare_pool(job->net->threads);
    last = job->net;
    if (!job->status) job->status = infer(job->net, job->args, job->count);
    memcpy(job->said, said, sizeof said);
    job->done = 1;
    stand_in.job = NULL;
    pthread_cond_broadcast(&stand_in.changed);
  }
  return nothing;
}

static int start_stand_in(void) {
  pthread_t thread;
  if (stand_in.started) return 0;
  if (pthread_create(&thread, NULL, stand_in_main, NULL))
    return fail("the threads of a library stayed behind in a fork, and no other can be started");
  pthread_detach(thread);
  stand_in.started = 1;
  return 0;
}

static int infer_by_stand_in(tilewright_library *net, TVMFFIAny *args, int count) {
  struct job job = {.net = net, .args = args, .count = count};
  pthread_mutex_lock(&stand_in.one_at_a_time);
  pthread_mutex_lock(&stand_in.lock);
  job.status = start_stand_in();
  if (!job.status) {
    stand_in.job = &job;
    pthread_cond_broadcast(&stand_in.changed);
    while (!job.done) pthread_cond_wait(&stand_in.changed, &stand_in.lock);
    memcpy(said, job.said, sizeof said);
  }
  pthread_mutex_unlock(&stand_in.lock);
  pthread_mutex_unlock(&stand_in.one_at_a_time);
  return job.status;
}

static int start(tilewright_library *net, const char *path) {
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
  if (prepare_pool(net->threads)) return -1;
  return function_of(net->machine, "main", &net->main) || map_weights(net, path) ? -1 : 0;
}

/* Asks Linux for the tiles of AMX, as each process has to: a library in bfloat16 uses them. */
static void ask_for_tiles(void) {
#if defined(__x86_64__) && defined(__linux__)
  syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
#endif
}

int tilewright_library_open(const char *network_so, int threads, tilewright_library **out) {
  *out = NULL;
  if (threads < 1) return fail("a library computes with one thread or more");
  ask_for_tiles();
  tilewright_library *net = calloc(1, sizeof *net);
  if (!net) return fail("there is not enough memory");
  net->threads = threads;
  if (start(net, network_so)) {
    tilewright_library_close(net);
    return -1;
  }
  *out = net;
  return 0;
}

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
  void *copy = NULL;
  if ((uintptr_t)given->data % ALIGNMENT) {
    size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    copy = aligned_alloc(ALIGNMENT, room ? room : ALIGNMENT);
    if (!copy) return fail("there is not enough memory");
    memcpy(copy, given->data, bytes);
  }
  return view(copy ? copy : given->data, given->shape, given->axes, types[given->dtype], copy, out);
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
  TVMFFIAny args[MOST_INPUTS + 1];
  int wrapped = 0, status = 0;
  if (input_count < 0 || input_count > MOST_INPUTS) return fail("there are too many inputs");
  drop(&net->result);
  while (!status && wrapped < input_count) {
    status = wrap(&inputs[wrapped], &args[wrapped]);
    wrapped += !status;
  }
  args[wrapped] = net->weights;
  int count = input_count + !!net->mapped;
  if (!status) status = lost_pool ? infer_by_stand_in(net, args, count) : infer(net, args, count);
  while (wrapped) drop(&args[--wrapped]);
  return status ? -1 : give(net, outputs, output_count);
}

void tilewright_library_close(tilewright_library *net) {
  if (!net) return;
  drop(&net->result);
  drop(&net->weights);
  if (net->main) TVMFFIObjectDecRef(net->main);
  if (net->machine) TVMFFIObjectDecRef(net->machine);
  if (net->module) TVMFFIObjectDecRef(net->module);
  if (net->mapped) munmap(net->mapped, net->mapped_bytes);
  free(net);
}
