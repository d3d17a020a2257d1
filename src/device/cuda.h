/* CUDA as a device. */
#ifndef TUTTI_DEVICE_CUDA_H_
#define TUTTI_DEVICE_CUDA_H_

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The table, or NULL; then *why says in a sentence what is missing. Looks only once. */
const tuttiDevice *tuttiDeviceCudaTable(const char **why);

/* The device of a rank that names `ordinal` (-1: none): with CUDA the thread's current one if none,
 * without CUDA the ordinal as it is. */
int tuttiDeviceCudaOrdinal(int ordinal);

#ifdef __cplusplus
}
#endif

#endif
