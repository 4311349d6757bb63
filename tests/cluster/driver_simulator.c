/* The stock driver's functions for a test: memory is a file, and a process on a Unix socket runs
 * streams on it (`boards.py`). SIMULATOR names the folder of both. */

#define _GNU_SOURCE

#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BASE = 4096, MEMORY_BYTES = 1 << 20 };

static char *memory;
static size_t used;
static int device;
static uint64_t cycles;
uint64_t VTADeviceCycles(VTADeviceHandle handle);

static void give_up(const char *what) {
  perror(what);
  _exit(1);
}

static void path_of(const char *name, char *out, size_t size) {
  const char *folder = getenv("SIMULATOR");
  if (!folder) give_up("SIMULATOR");
  snprintf(out, size, "%s/%s", folder, name);
}

static void open_memory(void) {
  char path[100];
  int file;
  if (memory) return;
  path_of("memory", path, sizeof path);
  file = open(path, O_RDWR);
  if (file < 0) give_up(path);
  memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) give_up(path);
}

VTADeviceHandle VTADeviceAlloc(void) { return &device; }
void VTADeviceFree(VTADeviceHandle handle) { (void)handle; }
uint64_t VTADeviceCycles(VTADeviceHandle handle) { return (void)handle, cycles; }

int VTADeviceRun(VTADeviceHandle handle, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                 uint32_t wait_cycles) {
  struct sockaddr_un place = {.sun_family = AF_UNIX};
  uint64_t request[2], answer[2];
  int link = socket(AF_UNIX, SOCK_STREAM, 0);
  (void)handle, (void)wait_cycles;
  request[0] = (uint64_t)insn_phy_addr;
  request[1] = insn_count;
  path_of("socket", place.sun_path, sizeof place.sun_path);
  if (link < 0 || connect(link, (struct sockaddr *)&place, sizeof place)) give_up("connect");
  if (write(link, request, sizeof request) != (ssize_t)sizeof request) give_up("write");
  if (read(link, answer, sizeof answer) != (ssize_t)sizeof answer) give_up("read");
  close(link);
  cycles = answer[1];
  return (int)answer[0];
}

void *VTAMemAlloc(size_t size, int cached) {
  char *place;
  (void)cached;
  open_memory();
  size = (size + VTA_PAGE_BYTES - 1) / VTA_PAGE_BYTES * VTA_PAGE_BYTES;
  if (size > MEMORY_BYTES - used) return NULL;
  place = memory + used;
  memset(place, 0xa5, size);
  used += size;
  return place;
}

void VTAMemFree(void *buf) { (void)buf; }

vta_phy_addr_t VTAMemGetPhyAddr(void *buf) {
  return (vta_phy_addr_t)(BASE + (uint64_t)((char *)buf - memory));
}

void VTAMemCopyFromHost(void *dst, const void *src, size_t size) { memcpy(dst, src, size); }
void VTAMemCopyToHost(void *dst, const void *src, size_t size) { memcpy(dst, src, size); }
