/* Options of a communicator: the user's config, else the settings, else defaults. */
#include "comm/options.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"
#include "transport/net.h"

#define CONFIG_LEAST offsetof(tuttiConfig_t, numRmaCtx) /* bytes, of the first version */

static tuttiResult_t takeInt(const char *field, int value, int min, int max, int *out) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return tuttiSuccess;
  if (value < min || value > max)
    return TUTTI_FAIL(tuttiInvalidArgument, "config.%s is %d; it must be %d to %d, or undefined",
                      field, value, min, max);
  *out = value;
  return tuttiSuccess;
}

static tuttiResult_t checkConfig(const tuttiConfig_t *config) {
  if (config->magic != TUTTI_CONFIG_MAGIC)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument config is not initialized; start it from TUTTI_CONFIG_INITIALIZER");
  if (config->size >= CONFIG_LEAST) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "config.size is %zu, less than the %zu bytes of version %d; start the config "
                    "from TUTTI_CONFIG_INITIALIZER",
                    config->size, CONFIG_LEAST, TUTTI_VERSION_CODE);
}

/* The config of a caller who knew fewer fields: the others are undefined. */
static tuttiConfig_t knownFields(const tuttiConfig_t *config) {
  tuttiConfig_t known = TUTTI_CONFIG_INITIALIZER;
  memcpy(&known, config, config->size < sizeof known ? config->size : sizeof known);
  return known;
}

static tuttiResult_t takeConfig(const tuttiConfig_t *given, tuttiOptions *o) {
  TUTTI_TRY(checkConfig(given));
  tuttiConfig_t known = knownFields(given), *config = &known;
  TUTTI_TRY(takeInt("blocking", config->blocking, 0, 1, &o->blocking));
  TUTTI_TRY(takeInt("minCTAs", config->minCTAs, 1, TUTTI_MAX_CHANNELS, &o->minChannels));
  TUTTI_TRY(takeInt("maxCTAs", config->maxCTAs, 1, TUTTI_MAX_BLOCKS, &o->maxChannels));
  TUTTI_TRY(takeInt("device", config->device, tuttiDeviceAuto, tuttiDeviceCuda, &o->device));
  TUTTI_TRY(takeInt("timeoutMs", config->timeoutMs, 0, INT_MAX, &o->timeoutMs));
  /* Cut where they are too long: the name is for logs, and no network has so long a one. */
  if (config->netName) snprintf(o->net, sizeof o->net, "%s", config->netName);
  if (config->commName) snprintf(o->name, sizeof o->name, "%s", config->commName);
  TUTTI_TRY(takeInt("splitShare", config->splitShare, 0, 1, &(int){0})); /* of no effect */
  TUTTI_TRY(takeInt("trafficClass", config->trafficClass, 0, 255, &o->trafficClass));
  TUTTI_TRY(takeInt("numRmaCtx", config->numRmaCtx, 0, TUTTI_RMA_CONTEXTS, &o->rmaContexts));
  TUTTI_TRY(takeInt("numRmaSig", config->numRmaSig, 1, TUTTI_RMA_SIGNALS, &o->rmaSignals));
  return tuttiSuccess;
}

tuttiResult_t tuttiOptionsResolve(const tuttiConfig_t *config, const tuttiOptions *base,
                                  tuttiOptions *out) {
  tuttiOptions o = {.blocking = 1, .ordinal = -1, .rmaContexts = 1, .rmaSignals = 1};
  TUTTI_TRY(tuttiSettingsLoad());
  if (base) {
    o = *base;
    o.name[0] = '\0'; /* each has its own */
  } else {
    const char *device = tuttiSettingString(TUTTI_SETTING_DEVICE); /* auto, host or cuda */
    o.minChannels = (int)tuttiSettingInt(TUTTI_SETTING_MIN_NCHANNELS);
    o.maxChannels = (int)tuttiSettingInt(TUTTI_SETTING_MAX_NCHANNELS);
    o.timeoutMs = (int)tuttiSettingInt(TUTTI_SETTING_TIMEOUT);
    o.trafficClass = (int)tuttiSettingInt(TUTTI_SETTING_IB_TC);
    if (*device != 'a') o.device = *device == 'h' ? tuttiDeviceHost : tuttiDeviceCuda;
    snprintf(o.net, sizeof o.net, "%s", tuttiSettingString(TUTTI_SETTING_NET));
  }
  if (config) TUTTI_TRY(takeConfig(config, &o));
  const tuttiNet *net = tuttiNetFind(o.net);
  if (net) snprintf(o.net, sizeof o.net, "%s", net->name); /* ranks compare it */
  bool mixed = config && (config->minCTAs < 0) != (config->maxCTAs < 0);
  if (mixed && o.maxChannels && o.minChannels > o.maxChannels) o.minChannels = o.maxChannels;
  if (o.minChannels && o.maxChannels && o.minChannels > o.maxChannels)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "the least number of channels (%d) is above the greatest (%d); mend "
                      "config.minCTAs/maxCTAs or TUTTI_MIN_NCHANNELS/TUTTI_MAX_NCHANNELS",
                      o.minChannels, o.maxChannels);
  *out = o;
  return tuttiSuccess;
}
