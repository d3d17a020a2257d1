#include "transport/meter.h"

#include <stdlib.h>
#include <string.h>

static uint32_t perSecond(uint64_t bytes, uint64_t ns) {
  uint64_t rate = bytes * 1000000u / (ns ? ns : 1);
  return rate < UINT32_MAX ? (uint32_t)rate : UINT32_MAX;
}

void tuttiMeterMark(tuttiMeter *m, uint64_t now, uint64_t bytes, uint64_t all) {
  if (m->at) {
    m->sampleNs += now - m->at;
    m->sampleBytes += bytes - m->bytes;
    m->sampleAll += all - m->all;
  }
  m->at = now;
  m->bytes = bytes;
  m->all = all;
  if (m->sampleBytes < TUTTI_METER_SAMPLE) return;
  uint32_t i = m->samples++ % TUTTI_METER_SAMPLES;
  m->rate[i] = perSecond(m->sampleBytes, m->sampleNs);
  m->allRate[i] = perSecond(m->sampleAll, m->sampleNs);
  m->sampleNs = m->sampleBytes = m->sampleAll = 0;
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static uint32_t median(const uint32_t *values, uint32_t n) {
  uint32_t sorted[TUTTI_METER_SAMPLES];
  memcpy(sorted, values, n * sizeof *values);
  qsort(sorted, n, sizeof *sorted, compare);
  return sorted[n / 2];
}

bool tuttiMeterRate(const tuttiMeter *m, uint32_t *rate, uint32_t *allRate) {
  uint32_t n = m->samples < TUTTI_METER_SAMPLES ? m->samples : TUTTI_METER_SAMPLES;
  if (n < TUTTI_METER_LEAST) return false;
  *rate = median(m->rate, n);
  *allRate = median(m->allRate, n);
  return *rate > 0;
}
