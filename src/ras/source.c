#include "ras/source.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* The entry of a communicator: by its hash, or while its ranks have not met by its unique id. */
static tuttiCommSnapshot *find(tuttiSnapshot *s, const tuttiFacts *own) {
  for (int i = 0; i < s->ncomms; i++) {
    tuttiCommSnapshot *c = &s->comms[i];
    bool same = c->hash == own->hash && c->nranks == own->nranks;
    if (same && (own->hash != 0 || c->key == own->key)) return c;
  }
  return NULL;
}

/* What an answer to the inquiry holds, if it is of this rank of this communicator. */
static void takeReport(tuttiRankView *v, const tuttiWatchReport *report, uint64_t hash, int nranks,
                       tuttiRankView *fresh) {
  memset(fresh, 0, sizeof *fresh);
  fresh->who = v->who;
  fresh->answer = report->answer;
  if (report->bytes > 0 && tuttiFactsParse(report->report, report->bytes, &fresh->facts))
    fresh->told = fresh->facts.hash == hash && fresh->facts.nranks == nranks &&
                  fresh->facts.rank == v->who.rank;
  tuttiRankViewMerge(v, fresh);
}

tuttiResult_t tuttiRasCollect(const tuttiRasSource *source, tuttiInquiry *q, tuttiSnapshot *out) {
  TUTTI_FRESH(tuttiRankView, own, 1, "what a rank tells", NULL);
  TUTTI_FRESH(tuttiRankView, fresh, 1, "what a rank tells", NULL);
  source->facts(source->ctx, &own->facts);
  tuttiCommSnapshot *c = find(out, &own->facts);
  if (!c) {
    TUTTI_TRY(tuttiSnapshotAdd(out, own->facts.hash, own->facts.key, source->nranks, &c));
    c->asker = source->rank;
    memcpy(c->name, own->facts.name, sizeof c->name);
  }
  for (int r = 0; source->watch && r < c->nranks; r++) {
    source->member(source->ctx, r, &c->ranks[r].who);
    if (q) takeReport(&c->ranks[r], &tuttiInquiryReports(q)[r], c->hash, c->nranks, fresh);
  }
  own->told = 1;
  own->who = (tuttiWho){.rank = source->rank, .pid = own->facts.pid};
  memcpy(own->who.host, own->facts.host, sizeof own->who.host);
  own->answer.answered = TUTTI_ANSWER_OWN;
  tuttiRankViewMerge(&c->ranks[source->rank], own);
  return tuttiSuccess;
}
