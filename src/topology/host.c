/* The topology of the host this process runs on: detected or read once, kept until TUTTI_TOPO_FILE
 * names another. */
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "topology/topology.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tuttiTopology *current;
static const char *currentFile, *dumpedFile; /* settings' strings live for ever */

/* Under the lock. */
static tuttiResult_t load(void) {
  const char *file = tuttiSettingString(TUTTI_SETTING_TOPO_FILE);
  const char *dump = tuttiSettingString(TUTTI_SETTING_TOPO_DUMP_FILE);
  if (!current || strcmp(file, currentFile) != 0) {
    tuttiTopology *t;
    TUTTI_TRY(file[0] ? tuttiTopologyReadXml(file, &t) : tuttiTopologyDetect("/sys", &t));
    tuttiTopologyFree(current);
    current = t;
    currentFile = file;
    dumpedFile = NULL;
    TUTTI_INFO(GRAPH, "topology of this host: %d nodes from %s", t->count,
               file[0] ? file : "sysfs");
  }
  if (dump[0] && (!dumpedFile || strcmp(dump, dumpedFile) != 0)) {
    TUTTI_TRY(tuttiTopologyWriteXml(current, dump));
    dumpedFile = dump;
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiTopologyHostNic(const char *name, float *linkGBs) {
  pthread_mutex_lock(&lock);
  tuttiResult_t result = load();
  if (result == tuttiSuccess) {
    int at = tuttiTopologyFind(current, name);
    *linkGBs = at >= 0 && current->nodes[at].kind == tuttiNodeNic ? current->nodes[at].linkGBs : 0;
  }
  pthread_mutex_unlock(&lock);
  return result;
}
