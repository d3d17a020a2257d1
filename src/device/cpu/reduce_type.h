/* The loop of one element type; a template, included by reduce_loops.h once for each type with
 *   TYPE      the type's name
 *   ELEMENT   what lies in memory
 *   IS_FLOAT  0 or 1
 * It defines reduce<TYPE>(args). No include guard. */

/* What is computed with. */
#ifdef NARROWED
#define LANE float
#else
#define LANE ELEMENT
#endif

#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(name)   PASTE(name, TYPE)
#define LANES        (VECTOR_BYTES / sizeof(LANE))

typedef VECTOR(LANE, VECTOR_BYTES) NAME(V);

/* The vector at p; its first `part` lanes when part > 0 (the others are 0). */
INLINE NAME(V) NAME(load)(const ELEMENT *p, size_t part) {
  VECTOR(ELEMENT, LANES * sizeof(ELEMENT)) e = {0};
  if (part > 0)
    memcpy(&e, p, part * sizeof(ELEMENT));
  else
    memcpy(&e, p, sizeof e);
#ifdef NARROWED
  return NAME(from)(e);
#else
  return e;
#endif
}

INLINE void NAME(store)(ELEMENT *p, NAME(V) v, size_t part, bool streams) {
#ifdef NARROWED
  VECTOR(ELEMENT, LANES * sizeof(ELEMENT)) e = NAME(to)(v);
#else
  NAME(V) e = v;
#endif
  if (part > 0)
    memcpy(p, &e, part * sizeof(ELEMENT));
  else if (streams)
    tuttiStreamBytes(p, &e, sizeof e);
  else
    memcpy(p, &e, sizeof e);
}

/* a op b; a NaN in either wins. `op` is a constant of the caller. */
INLINE NAME(V) NAME(combine)(tuttiRedOp_t op, NAME(V) a, NAME(V) b) {
  if (op == tuttiProd) return a * b;
  if (op == tuttiSum) return a + b;
  __auto_type first = op == tuttiMin ? a < b : a > b;
#if IS_FLOAT
  first |= ~IS_NUMBER(a);
#endif
  return (NAME(V))SELECT(first, (__typeof__(first))a, (__typeof__(first))b);
}

INLINE NAME(V) NAME(scale)(NAME(V) v, tuttiScalar scalar) {
#ifdef NARROWED
  return NAME(from)(NAME(to)(v * (LANE)scalar.f)); /* as peers get it */
#elif IS_FLOAT
  return v * (LANE)scalar.f;
#else
  return v * (LANE)scalar.i;
#endif
}

#if IS_FLOAT
INLINE NAME(V) NAME(divide)(NAME(V) v, int divisor) {
  return v / (LANE)divisor;
}

/* Leaves one NaN of all: which operand's NaN survives an addition depends on the order that the
 * compiler chose. Conversions to NARROWED types do the same. */
INLINE NAME(V) NAME(settle)(NAME(V) v) {
#ifndef NARROWED
  __auto_type number = IS_NUMBER(v);
  const NAME(V) nan = (NAME(V)){} + (LANE)__builtin_nan("");
  v = (NAME(V))SELECT(number, (__typeof__(number))v, (__typeof__(number))nan);
#endif
  return v;
}
#else
/* In at least the width of an int, which holds both operands. No CPU divides vectors of integers:
 * not worth inlining. */
static __attribute__((noinline)) void NAME(divideLanes)(NAME(V) * v, int divisor) {
  for (size_t lane = 0; lane < LANES; lane++)
    (*v)[lane] = (LANE)((*v)[lane] / (__typeof__((LANE)0 + 0))divisor);
}
INLINE NAME(V) NAME(divide)(NAME(V) v, int divisor) {
  NAME(divideLanes)(&v, divisor);
  return v;
}
INLINE NAME(V) NAME(settle)(NAME(V) v) {
  return v;
}
#endif

/* To each of so many outputs; the rest as of tile. */
INLINE void NAME(storeTile)(void *const *out, int nout, const NAME(V) * v, size_t i, size_t vectors,
                            size_t part, bool streams) {
  for (int j = 0; j < nout; j++) {
    for (size_t t = 0; t < vectors; t++)
      NAME(store)((ELEMENT *)out[j] + i + t * LANES, v[t], part, streams);
  }
}

/* `vectors` vectors from element i on, or the first `part` lanes of one. */
INLINE void NAME(tile)(const tuttiReduceArgs *a, tuttiRedOp_t op, size_t i, size_t vectors,
                       size_t part) {
  NAME(V) v[TILE];
  for (size_t t = 0; t < vectors; t++)
    v[t] = NAME(load)((const ELEMENT *)a->in[0] + i + t * LANES, part);
  if (op == tuttiSum && a->premul == 1) {
    for (size_t t = 0; t < vectors; t++)
      v[t] = NAME(scale)(v[t], a->scalar);
  }
  for (int k = 1; k < a->nin; k++) {
    const ELEMENT *in = (const ELEMENT *)a->in[k] + i;
    bool scaled = op == tuttiSum && a->premul == k + 1;
    for (size_t t = 0; t < vectors; t++) {
      NAME(V) x = NAME(load)(in + t * LANES, part);
      if (scaled) x = NAME(scale)(x, a->scalar);
      v[t] = NAME(combine)(op, v[t], x);
    }
  }
  if (op == tuttiSum && a->divide > 1) {
    for (size_t t = 0; t < vectors; t++)
      v[t] = NAME(divide)(v[t], a->divide);
  }
  for (size_t t = 0; t < vectors; t++)
    v[t] = NAME(settle)(v[t]);
  int ordinary = a->nout - a->nstreams;
  NAME(storeTile)(a->out, ordinary, v, i, vectors, part, false);
  NAME(storeTile)(a->out + ordinary, a->nstreams, v, i, vectors, part, true);
}

INLINE void NAME(loop)(const tuttiReduceArgs *a, tuttiRedOp_t op) {
  size_t i = 0, n = a->count;
  for (; i + TILE * LANES <= n; i += TILE * LANES)
    NAME(tile)(a, op, i, TILE, 0);
  for (; i + LANES <= n; i += LANES)
    NAME(tile)(a, op, i, 1, 0);
  if (i < n) NAME(tile)(a, op, i, 1, n - i);
}

static void NAME(reduce)(const tuttiReduceArgs *args) {
  if (args->op == tuttiProd)
    NAME(loop)(args, tuttiProd);
  else if (args->op == tuttiMin)
    NAME(loop)(args, tuttiMin);
  else if (args->op == tuttiMax)
    NAME(loop)(args, tuttiMax);
  else /* tuttiSum, tuttiAvg: the division is `divide` */
    NAME(loop)(args, tuttiSum);
}

#undef PASTE2
#undef PASTE
#undef NAME
#undef LANES
#undef TYPE
#undef ELEMENT
#undef LANE
