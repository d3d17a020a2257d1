/* Writes what sysfs would show of the configured devices: softhca_sysfs ROOT DEVICES.
 *
 * ROOT/class/infiniband and ROOT/bus/pci/devices get an entry for each device, links to what it
 * makes below the folder DEVICES, which must lie below ROOT for programs that resolve them. With
 * a peer memory module, there is ROOT/module/nvidia_peermem, too. */
#include "hca.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void quit(const char *path) {
  fprintf(stderr, "softhca_sysfs: %s: %s\n", path, strerror(errno));
  exit(1);
}

/* ---- files ---------------------------------------------------------------------------------- */

static char *format(char *path, const char *pattern, va_list arguments) {
  if (vsnprintf(path, PATH_MAX, pattern, arguments) < PATH_MAX) return path;
  errno = ENAMETOOLONG;
  quit(path);
  return path;
}

/* Makes the folder and those above it. */
static void makeFolders(const char *pattern, ...) {
  char path[PATH_MAX];
  va_list arguments;
  va_start(arguments, pattern);
  format(path, pattern, arguments);
  va_end(arguments);
  for (char *c = path + 1;; c++) {
    char end = *c;
    if (end && end != '/') continue;
    *c = '\0';
    if (mkdir(path, 0755) && errno != EEXIST) quit(path);
    if (!end) return;
    *c = end;
  }
}

static void writeFile(const char *folder, const char *name, const char *pattern, ...) {
  char path[PATH_MAX];
  va_list arguments;
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) quit(folder);
  FILE *file = fopen(path, "w");
  if (!file) quit(path);
  va_start(arguments, pattern);
  vfprintf(file, pattern, arguments);
  va_end(arguments);
  if (fputc('\n', file) == EOF || fclose(file)) quit(path);
}

static void makeLink(const char *to, const char *pattern, ...) {
  char path[PATH_MAX];
  va_list arguments;
  va_start(arguments, pattern);
  format(path, pattern, arguments);
  va_end(arguments);
  unlink(path);
  if (symlink(to, path)) quit(path);
}

/* ---- PCI ------------------------------------------------------------------------------------ */

static void writeFunction(const char *folder, const softDeviceConfig *d, bool bridge) {
  writeFile(folder, "vendor", "0x15b3");
  writeFile(folder, "device", bridge ? "0x1979" : "0x1021");
  writeFile(folder, "class", bridge ? "0x060400" : d->roce ? "0x020000" : "0x020700");
  writeFile(folder, "numa_node", "%lld", d->numa == UINT64_MAX ? -1 : (long long)d->numa);
  writeFile(folder, "max_link_speed", "32.0 GT/s PCIe");
  writeFile(folder, "max_link_width", "16");
  writeFile(folder, "current_link_speed", "32.0 GT/s PCIe");
  writeFile(folder, "current_link_width", "16");
}

/* The functions on the way to the device, which is the last; *folder: its own. */
static void writePath(const char *root, const char *devices, const softDeviceConfig *d,
                      char *folder) {
  char place[sizeof d->pci], *rest = NULL;
  snprintf(place, sizeof place, "%s", d->pci);
  snprintf(folder, PATH_MAX, "%s", devices);
  for (char *name = strtok_r(place, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
    size_t used = strlen(folder);
    snprintf(folder + used, PATH_MAX - used, "/%s", name);
    makeFolders("%s", folder);
    if (strncmp(name, "pci", 3) == 0) continue;
    if (access(folder, F_OK)) quit(folder);
    writeFunction(folder, d, rest && *rest);
    makeLink(folder, "%s/bus/pci/devices/%s", root, name);
  }
}

/* ---- devices -------------------------------------------------------------------------------- */

static const char *speedName(const struct ibv_port_attr *a) {
  switch (a->active_speed) {
  case 1:
    return "SDR";
  case 2:
    return "DDR";
  case 4:
    return "QDR";
  case 8:
    return "FDR10";
  case 16:
    return "FDR";
  case 32:
    return "EDR";
  case 64:
    return "HDR";
  default:
    return "NDR";
  }
}

static double laneOf(const struct ibv_port_attr *a) { /* Gb/s */
  const double speeds[] = {2.5, 5, 10, 10, 14, 25, 50, 100};
  for (int i = 0; i < 8; i++)
    if (a->active_speed == 1 << i) return speeds[i];
  return 0;
}

static int lanesOf(const struct ibv_port_attr *a) {
  return a->active_width == 16  ? 2
         : a->active_width == 2 ? 4
         : a->active_width == 4 ? 8
         : a->active_width == 8 ? 12
                                : 1;
}

static void writeGids(struct ibv_context *context, const char *folder, int port, int rows,
                      bool roce) {
  char gids[PATH_MAX], types[PATH_MAX], name[16];
  snprintf(gids, sizeof gids, "%.4000s/gids", folder);
  snprintf(types, sizeof types, "%.4000s/gid_attrs/types", folder);
  makeFolders("%s", gids);
  makeFolders("%s", types);
  for (int i = 0; i < rows; i++) {
    union ibv_gid gid;
    struct ibv_gid_entry entry;
    if (ibv_query_gid(context, (uint8_t)port, i, &gid) ||
        _ibv_query_gid_ex(context, (uint32_t)port, (uint32_t)i, &entry, 0, sizeof entry))
      quit(folder);
    char text[48], *at = text;
    for (int byte = 0; byte < 16; byte += 2)
      at += snprintf(at, 6, "%s%02x%02x", byte ? ":" : "", gid.raw[byte], gid.raw[byte + 1]);
    snprintf(name, sizeof name, "%d", i);
    writeFile(gids, name, "%s", text);
    writeFile(types, name,
              roce && entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
  }
}

static void writePort(struct ibv_context *context, const char *folder, int port) {
  char path[PATH_MAX];
  struct ibv_port_attr a = {.gid_tbl_len = 0};
  if (ibv_query_port(context, (uint8_t)port, (struct _compat_ibv_port_attr *)&a)) quit(folder);
  bool roce = a.link_layer == IBV_LINK_LAYER_ETHERNET;
  snprintf(path, sizeof path, "%.4000s/ports/%d", folder, port);
  makeFolders("%s", path);
  writeFile(path, "state", a.state == IBV_PORT_ACTIVE ? "4: ACTIVE" : "1: DOWN");
  writeFile(path, "phys_state", a.state == IBV_PORT_ACTIVE ? "5: LinkUp" : "2: Polling");
  writeFile(path, "link_layer", roce ? "Ethernet" : "InfiniBand");
  writeFile(path, "lid", "0x%x", a.lid);
  writeFile(path, "rate", "%g Gb/sec (%dX %s)", laneOf(&a) * lanesOf(&a), lanesOf(&a),
            speedName(&a));
  writeGids(context, path, port, a.gid_tbl_len, roce);
}

static void writeDevice(struct ibv_device *device, const softDeviceConfig *d, const char *root,
                        const char *devices) {
  char place[PATH_MAX], folder[PATH_MAX];
  struct ibv_context *context = ibv_open_device(device);
  if (!context) quit(d->name);
  writePath(root, devices, d, place);
  snprintf(folder, sizeof folder, "%.4000s/infiniband/%s", place, d->name);
  makeFolders("%s", folder);
  if (*d->pci) makeLink(place, "%s/device", folder);
  uint64_t guid = be64toh(ibv_get_device_guid(device));
  writeFile(folder, "node_type", "1: CA");
  writeFile(folder, "node_guid", "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48) & 0xffff,
            (unsigned)(guid >> 32) & 0xffff, (unsigned)(guid >> 16) & 0xffff,
            (unsigned)guid & 0xffff);
  for (uint64_t port = 1; port <= d->nports; port++)
    writePort(context, folder, (int)port);
  makeLink(folder, "%s/class/infiniband/%s", root, d->name);
  ibv_close_device(context);
}

int main(int argc, char **argv) {
  static softConfig config;
  char root[PATH_MAX], devices[PATH_MAX];
  if (argc != 3) {
    fprintf(stderr, "usage: softhca_sysfs ROOT DEVICES\n");
    return 2;
  }
  for (int i = 1; i <= 2; i++) {
    makeFolders("%s", argv[i]);
    if (!realpath(argv[i], i == 1 ? root : devices)) quit(argv[i]);
  }
  softConfigRead(&config);
  makeFolders("%s/class/infiniband", root);
  makeFolders("%s/bus/pci/devices", root);
  struct ibv_device **list = ibv_get_device_list(NULL);
  for (int i = 0; list && list[i]; i++)
    writeDevice(list[i], &config.devices[i], root, devices);
  ibv_free_device_list(list);
  if (config.peermem) {
    makeFolders("%s/module/nvidia_peermem", root);
    snprintf(devices, sizeof devices, "%.4000s/module/nvidia_peermem", root);
    writeFile(devices, "version", "580.0");
  }
  return 0;
}
