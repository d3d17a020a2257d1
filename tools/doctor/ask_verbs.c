/* What libibverbs says of the RDMA devices, by the calls that the library itself uses. */
#include "doctor/machine.h"

#ifdef TUTTI_HAVE_VERBS

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "transport/ib/endpoint.h"

static tuttiResult_t askDevice(tuttiMachine *m, struct ibv_device *device) {
  const char *name = tuttiVerbs.deviceName(device);
  tuttiIbRail rail = {.context = tuttiVerbs.open(device)};
  if (rail.context == NULL)
    return tuttiMachineTell(m, tuttiErrnoText(errno), "verbs.%s.open", name);
  tuttiResult_t result = tuttiMachineTell(m, "ok", "verbs.%s.open", name);
  rail.pd = tuttiVerbs.allocPd(rail.context);
  if (result == tuttiSuccess && rail.pd)
    result = tuttiMachineTell(m, tuttiIbDmabuf(&rail) ? "1" : "0", "verbs.%s.dmabuf", name);
  if (rail.pd) tuttiVerbs.deallocPd(rail.pd);
  tuttiVerbs.close(rail.context);
  return result;
}

tuttiResult_t tuttiAskVerbs(tuttiMachine *m) {
  const char *missing = tuttiVerbsLoad();
  int n = 0;
  tuttiResult_t result = tuttiMachineTell(m, missing ? missing : "ok", "verbs.state");
  struct ibv_device **devices = missing ? NULL : tuttiVerbs.getDeviceList(&n);
  for (int i = 0; devices && i < n && result == tuttiSuccess; i++)
    result = askDevice(m, devices[i]);
  if (devices) tuttiVerbs.freeDeviceList(devices);
  return result;
}

#else

tuttiResult_t tuttiAskVerbs(tuttiMachine *m) {
  return tuttiMachineTell(m, "not built", "verbs.state");
}

#endif
