/* Sides of a comparison that run at the same time, and take turns: the ranks of one work while all
 * others sleep. What a virtual machine gives changes within seconds: only what is measured in turns
 * of milliseconds has had the same machine. */
#ifndef TUTTI_BENCH_BATON_H_
#define TUTTI_BENCH_BATON_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Joins those that the environment names: BATON_FILE, a file of zeros of at least a page that all
 * share, BATON_SIDES, how many, BATON_SIDE, which of them this process is of, from 0. Without
 * BATON_FILE there is one side. Ends the process if the file cannot be had. Each side has `nranks`
 * processes. Returns when all of all sides are here. */
void batonJoin(int nranks);
/* Waits for the next turn of this side. This, as every wait here, ends the process when no turn of
 * the others has ended for five minutes. */
void batonTake(void);
/* Ends this side's turn when all its ranks have called; the next side's begins. */
void batonPass(void);
/* Returns when all of all sides have come here. */
void batonLeave(void);

#ifdef __cplusplus
}
#endif

#endif
