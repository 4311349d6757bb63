/* tilewright_run ART input.bin output.bin REPEATS PATIENCE
 *
 * Runs a network of one layer so many times and says of each run how long the device took: a line
 * with nanoseconds of the host's clock around VTADeviceRun, and the device's cycles, 0 where the
 * driver does not count them. A driver that does defines VTADeviceCycles, the cycles of its last
 * run. PATIENCE is how often the driver looks whether the device has finished.
 *
 * Both files hold raw tensors in the order of the artifact. Exit code: 0; 3 after a time-out; 1 if
 * the device, the memory or the disk failed; 2 if anything else is wrong. It takes the place of
 * main.c, and is linked with -Wl,--wrap=VTADeviceRun.
 */

#define _POSIX_C_SOURCE 199309L

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "tilewright.h"

enum { FAILED = 1, REFUSED = 2, TIMED_OUT = 3 };

static uint64_t nanoseconds, cycles;

int __real_VTADeviceRun(VTADeviceHandle device, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                        uint32_t wait_cycles);
int __wrap_VTADeviceRun(VTADeviceHandle device, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                        uint32_t wait_cycles);
__attribute__((weak)) uint64_t VTADeviceCycles(VTADeviceHandle device);

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int __wrap_VTADeviceRun(VTADeviceHandle device, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                        uint32_t wait_cycles) {
  uint64_t begin = now();
  int code = __real_VTADeviceRun(device, insn_phy_addr, insn_count, wait_cycles);
  nanoseconds = now() - begin;
  cycles = VTADeviceCycles ? VTADeviceCycles(device) : 0;
  return code;
}

static int say(const tilewright *net, int code) {
  if (!code) return EXIT_SUCCESS;
  fprintf(stderr, "%s\n", tilewright_message(net));
  if (code == TILEWRIGHT_TIME_OUT) return TIMED_OUT;
  return code == TILEWRIGHT_NO_MEMORY || code == TILEWRIGHT_NO_DEVICE ? FAILED : REFUSED;
}

static int set_inputs(tilewright *net, FILE *from) {
  size_t i;
  for (i = 0; i < tilewright_input_count(net); i++) {
    size_t bytes = tilewright_input_bytes(net, i);
    void *data = malloc(bytes ? bytes : 1);
    int code;
    if (!data || fread(data, 1, bytes, from) != bytes) {
      fprintf(stderr, "input %lu cannot be read\n", (unsigned long)i);
      free(data);
      return FAILED;
    }
    code = tilewright_set_input(net, i, data, bytes);
    free(data);
    if (code) return say(net, code);
  }
  return EXIT_SUCCESS;
}

static int write_outputs(tilewright *net, FILE *to) {
  size_t i;
  for (i = 0; i < tilewright_output_count(net); i++) {
    size_t bytes = tilewright_output_bytes(net, i);
    void *data = malloc(bytes ? bytes : 1);
    int code = data ? tilewright_get_output(net, i, data, bytes) : TILEWRIGHT_NO_MEMORY;
    int written = !code && fwrite(data, 1, bytes, to) == bytes;
    free(data);
    if (code) return say(net, code);
    if (!written) {
      fprintf(stderr, "output %lu cannot be written\n", (unsigned long)i);
      return FAILED;
    }
  }
  return EXIT_SUCCESS;
}

static int measure(tilewright *net, long repeats, FILE *from, FILE *to) {
  int code = set_inputs(net, from);
  for (; !code && repeats > 0; repeats--) {
    code = say(net, tilewright_run(net));
    if (!code) printf("%llu %llu\n", (unsigned long long)nanoseconds, (unsigned long long)cycles);
  }
  return code ? code : write_outputs(net, to);
}

int main(int argc, char **argv) {
  tilewright *net = NULL;
  FILE *from, *to;
  int code;
  if (argc != 6) {
    fprintf(stderr, "usage: tilewright_run ART input.bin output.bin REPEATS PATIENCE\n");
    return REFUSED;
  }
  from = fopen(argv[2], "rb");
  to = fopen(argv[3], "wb");
  if (!from || !to) {
    fprintf(stderr, "cannot open %s\n", from ? argv[3] : argv[2]);
    if (from) fclose(from);
    if (to) fclose(to);
    return FAILED;
  }
  code = say(net, tilewright_open(argv[1], &net));
  if (!code) code = say(net, tilewright_set_patience(net, (uint32_t)strtoul(argv[5], NULL, 10)));
  if (!code) code = measure(net, strtol(argv[4], NULL, 10), from, to);
  tilewright_close(net);
  fclose(from);
  if (fclose(to)) code = code ? code : FAILED;
  return code;
}
