/* The functions of the stock VTA driver (vta/driver.h of apache/tvm-vta), which the boards' drivers,
 * the functional simulator and the RTL simulation define alike. Including both headers is harmless:
 * they share their guard.
 *
 * Physical addresses have 32 bits, or 64 where the driver was built with USE_VTA64; then build the
 * runtime with it too: make CFLAGS=-DUSE_VTA64.
 */

#ifndef VTA_DRIVER_H_
#define VTA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VTA_CACHED 1
#define VTA_NOT_CACHED 0

/* The largest buffer of physically contiguous memory, in bytes. */
#ifndef VTA_MAX_XFER
#define VTA_MAX_XFER (1 << 25)
#endif

#define VTA_PAGE_BITS 12
#define VTA_PAGE_BYTES (1 << VTA_PAGE_BITS)

typedef void *VTADeviceHandle;

#ifdef USE_VTA64
typedef uint64_t vta_phy_addr_t;
#else
typedef uint32_t vta_phy_addr_t;
#endif

VTADeviceHandle VTADeviceAlloc(void);
void VTADeviceFree(VTADeviceHandle handle);

/* Runs a stream to its end: 0, or 1 after a time-out. wait_cycles counts looks at the device. */
int VTADeviceRun(VTADeviceHandle device, vta_phy_addr_t insn_phy_addr, uint32_t insn_count,
                 uint32_t wait_cycles);

void *VTAMemAlloc(size_t size, int cached);
void VTAMemFree(void *buf);
vta_phy_addr_t VTAMemGetPhyAddr(void *buf);
void VTAMemCopyFromHost(void *dst, const void *src, size_t size);
void VTAMemCopyToHost(void *dst, const void *src, size_t size);

/* Of no use here: buffers are not cached, and the DE10-Nano's driver aborts in both. */
void VTAFlushCache(void *vir_addr, vta_phy_addr_t phy_addr, int size);
void VTAInvalidateCache(void *vir_addr, vta_phy_addr_t phy_addr, int size);

#ifdef __cplusplus
}
#endif
#endif /* VTA_DRIVER_H_ */
