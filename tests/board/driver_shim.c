/* The stock driver's functions on memory shared with the test, which runs the streams.
 *
 * SHIM_* in the environment say where the memory is and how the driver misbehaves. Buffers are
 * filled with garbage, lie `SHIM_GAP` pages apart, and must be given back: a line on stderr says how
 * many were not. Copies outside of a buffer end the process.
 */

#define _POSIX_C_SOURCE 200809L

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFERS = 4096, PAGE = VTA_PAGE_BYTES };

static struct {
  char *start;
  size_t bytes;
} buffers[BUFFERS];
static char *arena;
static size_t arena_bytes, used;
static int allocations, kept, devices, watching;

static unsigned long setting(const char *name, unsigned long otherwise) {
  const char *text = getenv(name);
  return text ? strtoul(text, NULL, 0) : otherwise;
}

static void give_up(const char *what) {
  fprintf(stderr, "shim: %s\n", what);
  fflush(stderr);
  _exit(99);
}

static void report(void) {
  if (kept || devices) fprintf(stderr, "shim: %d buffers and %d devices were kept\n", kept, devices);
  if (kept || devices) _exit(98);
}

static void watch(void) {
  if (!watching) atexit(report);
  watching = 1;
}

static void open_arena(void) {
  if (arena) return;
  arena_bytes = setting("SHIM_BYTES", 64ul << 20);
  if (getenv("SHIM_MEMORY")) {
    arena = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                 (int)setting("SHIM_MEMORY", 0), 0);
    if (arena == MAP_FAILED) give_up("no memory of the test");
  } else {
    arena = malloc(arena_bytes);
    if (!arena) give_up("no memory");
  }
}

VTADeviceHandle VTADeviceAlloc(void) {
  watch();
  if (getenv("SHIM_NO_DEVICE")) return NULL;
  devices++;
  return &devices;
}

void VTADeviceFree(VTADeviceHandle handle) {
  if (handle != &devices) give_up("a device that is none was freed");
  devices--;
}

int VTADeviceRun(VTADeviceHandle handle, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                 uint32_t wait_cycles) {
  unsigned long request[3];
  char answer;
  if (handle != &devices) give_up("a device that is none runs");
  if (getenv("SHIM_TIME_OUT")) return 1;
  request[0] = (unsigned long)insn_phy_addr;
  request[1] = insn_count;
  request[2] = wait_cycles;
  if (write((int)setting("SHIM_REQUEST", 1), request, sizeof request) != (ssize_t)sizeof request)
    give_up("nobody runs the stream");
  if (read((int)setting("SHIM_ANSWER", 0), &answer, 1) != 1) give_up("the stream did not run");
  return answer;
}

void *VTAMemAlloc(size_t size, int cached) {
  size_t pages = (size + PAGE - 1) / PAGE * PAGE;
  watch();
  open_arena();
  if (cached) give_up("cached memory was asked for");
  if (!size || size > VTA_MAX_XFER) give_up("a buffer of a size that the driver asserts against");
  if ((unsigned long)++allocations == setting("SHIM_FAIL_AT", 0))
    return (void *)setting("SHIM_FAIL_WITH", 0);
  if (kept == 0 && !getenv("SHIM_MEMORY")) used = 0;
  if (pages > arena_bytes - used || kept == BUFFERS) return NULL;
  buffers[kept].start = arena + used;
  buffers[kept].bytes = size;
  memset(arena + used, 0xa5, pages);
  used += pages + setting("SHIM_GAP", 0) * PAGE;
  if (used > arena_bytes) used = arena_bytes;
  return buffers[kept++].start;
}

static int find(const void *place, size_t bytes) {
  int i;
  for (i = 0; i < kept; i++)
    if ((const char *)place >= buffers[i].start &&
        (size_t)((const char *)place - buffers[i].start) <= buffers[i].bytes &&
        bytes <= buffers[i].bytes - (size_t)((const char *)place - buffers[i].start))
      return i;
  return -1;
}

static int find_start(const void *buf) {
  int i = kept - 1;
  while (i >= 0 && buffers[i].start != buf) i--;
  return i;
}

void VTAMemFree(void *buf) {
  int at = find_start(buf);
  if (at < 0) give_up("memory that is none was freed");
  buffers[at] = buffers[--kept];
}

vta_phy_addr_t VTAMemGetPhyAddr(void *buf) {
  int at = find_start(buf);
  if (at < 0) give_up("the address of no buffer's start was asked for");
  return (vta_phy_addr_t)(setting("SHIM_BASE", PAGE) + (unsigned long)((char *)buf - arena));
}

void VTAMemCopyFromHost(void *dst, const void *src, size_t size) {
  if (find(dst, size) < 0) give_up("a copy into no buffer");
  memcpy(dst, src, size);
}

void VTAMemCopyToHost(void *dst, const void *src, size_t size) {
  if (find(src, size) < 0) give_up("a copy out of no buffer");
  memcpy(dst, src, size);
}

void VTAFlushCache(void *vir_addr, vta_phy_addr_t phy_addr, int size) {
  (void)vir_addr, (void)phy_addr, (void)size;
  give_up("VTAFlushCache was called, which aborts on a DE10-Nano");
}

void VTAInvalidateCache(void *vir_addr, vta_phy_addr_t phy_addr, int size) {
  (void)vir_addr, (void)phy_addr, (void)size;
  give_up("VTAInvalidateCache was called, which aborts on a DE10-Nano");
}
