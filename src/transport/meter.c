#include "transport/meter.h"

static uint32_t perSecond(uint64_t bytes, uint64_t ns) {
  uint64_t rate = bytes * 1000000u / (ns ? ns : 1);
  return rate < UINT32_MAX ? (uint32_t)rate : UINT32_MAX;
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

static void keep(tuttiMeter *m, uint32_t rate, uint32_t allRate) {
  if (m->samples++ % TUTTI_METER_SAMPLES == 0) { /* a new generation */
    m->rate[1] = m->rate[0];
    m->allRate[1] = m->allRate[0];
    m->rate[0] = m->allRate[0] = 0;
  }
  m->rate[0] = larger(m->rate[0], rate);
  m->allRate[0] = larger(m->allRate[0], allRate);
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
  keep(m, perSecond(m->sampleBytes, m->sampleNs), perSecond(m->sampleAll, m->sampleNs));
  m->sampleNs = m->sampleBytes = m->sampleAll = 0;
}

bool tuttiMeterRate(const tuttiMeter *m, uint32_t *rate, uint32_t *allRate) {
  if (m->samples < TUTTI_METER_LEAST) return false;
  *rate = larger(m->rate[0], m->rate[1]);
  *allRate = larger(m->allRate[0], m->allRate[1]);
  return *rate > 0;
}
