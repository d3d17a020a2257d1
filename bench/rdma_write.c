/* What plain RDMA writes between two hosts reach, to compare NET/IB with.
 *
 *   rdma_write DEVICE GID-INDEX QPS [PEER]
 *
 * Without PEER it waits for the other side. Both sides write at once, each message cut over QPS
 * queue pairs and DEPTH messages under way, for 2 s per size; then one message at a time, the next
 * when the other side's has come, as calls of send and receive do; then 8 bytes go to and fro.
 * Every line says bytes per message and GB/s of one direction, or the time of one way. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_QPS = 16, DEPTH = 8, PORT = 18515, PINGS = 3000, INLINE = 64 };
#define MAX_BYTES (1u << 20)
#define OUT       4096       /* in `memory`: what the small writes send */
#define SWAPPED   (8u << 20) /* bytes that go each way one message at a time */

typedef struct {
  union ibv_gid gid;
  uint64_t addr;
  uint32_t rkey, qpn[MAX_QPS];
} side;

static struct ibv_cq *cq;
static struct ibv_qp *qp[MAX_QPS];
static struct ibv_mr *mr;
static side mine, theirs;
static uint8_t *memory;
static int sock, qps, inlines;

static void must(int good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void meet(const char *peer) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  if (peer) {
    must(inet_pton(AF_INET, peer, &at.sin_addr) == 1, "address");
    while (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
      close(fd);
      usleep(50000);
      fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    sock = fd;
  } else {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    must(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0, "listen");
    sock = accept(fd, NULL, NULL);
    must(sock >= 0, "accept");
  }
  setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void exchange(const void *out, void *in, size_t bytes) {
  must(send(sock, out, bytes, 0) == (ssize_t)bytes, "send");
  must(recv(sock, in, bytes, MSG_WAITALL) == (ssize_t)bytes, "recv");
}

static struct ibv_context *openDevice(const char *name) {
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  for (int i = 0; i < n; i++)
    if (strcmp(ibv_get_device_name(list[i]), name) == 0) return ibv_open_device(list[i]);
  return NULL;
}

static void makeQp(struct ibv_pd *pd, int i) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {2 * DEPTH, 1, 1, 1, INLINE}};
  qp[i] = ibv_create_qp(pd, &init);
  inlines = qp[i] != NULL;
  init.cap.max_inline_data = 0;
  if (!qp[i]) qp[i] = ibv_create_qp(pd, &init);
  must(qp[i] != NULL, "ibv_create_qp");
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  must(!ibv_modify_qp(qp[i], &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
       "INIT");
  mine.qpn[i] = qp[i]->qp_num;
}

static void joinQp(int i, enum ibv_mtu mtu, int gidIndex) {
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = mtu,
      .dest_qp_num = theirs.qpn[i],
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.port_num = 1,
                  .is_global = 1,
                  .grh = {.dgid = theirs.gid, .sgid_index = (uint8_t)gidIndex, .hop_limit = 64}}};
  must(!ibv_modify_qp(qp[i], &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
       "RTR");
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1};
  must(!ibv_modify_qp(qp[i], &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
       "RTS");
}

static void post(int i, size_t from, size_t at, size_t bytes) {
  struct ibv_sge sge = {(uintptr_t)memory + from, (uint32_t)bytes, mr->lkey};
  struct ibv_send_wr *bad,
      wr = {.sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED | (inlines && bytes <= INLINE ? IBV_SEND_INLINE : 0u),
            .wr.rdma = {theirs.addr + at, theirs.rkey}};
  must(ibv_post_send(qp[i], &wr, &bad) == 0, "ibv_post_send");
}

/* Takes the completions that are there. */
static uint64_t reap(void) {
  struct ibv_wc wc[DEPTH];
  int n = ibv_poll_cq(cq, DEPTH, wc);
  must(n >= 0, "ibv_poll_cq");
  for (int i = 0; i < n; i++)
    must(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
  return (uint64_t)n;
}

static void bandwidth(size_t bytes) {
  size_t share = bytes / (size_t)qps;
  uint64_t writes = 0, done = 0;
  char go = 0, gone;
  exchange(&go, &gone, 1);
  double begin = now();
  while (now() - begin < 2) {
    for (int i = 0; i < qps; i++, writes++)
      post(i, (size_t)i * share, (size_t)i * share, share);
    while (writes - done > (DEPTH - 1) * (uint64_t)qps)
      done += reap();
  }
  while (done < writes)
    done += reap();
  double seconds = now() - begin;
  exchange(&go, &gone, 1);
  printf("write   %8zu bytes %2d queue pairs  %7.4f GB/s\n", bytes, qps,
         (double)writes * (double)share / seconds / 1e9);
}

/* The last word of each message is its number; with it all of the message is there. */
static void swap(size_t bytes) {
  size_t count = SWAPPED / bytes, last = bytes - sizeof(uint64_t);
  uint64_t *in = (uint64_t *)(memory + last), *out = (uint64_t *)(memory + MAX_BYTES + last);
  uint64_t done = 0;
  char go = 0, gone;
  __atomic_store_n(in, 0, __ATOMIC_RELEASE);
  exchange(&go, &gone, 1);
  double begin = now();
  for (uint64_t k = 1; k <= count; k++) {
    *out = k;
    post(0, MAX_BYTES, 0, bytes);
    while (__atomic_load_n(in, __ATOMIC_ACQUIRE) < k || done < k)
      done += reap();
  }
  double seconds = now() - begin;
  exchange(&go, &gone, 1);
  printf("swap    %8zu bytes  1 queue pairs  %7.4f GB/s\n", bytes,
         (double)(count * bytes) / seconds / 1e9);
}

static int byTime(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Both write their turn's number to the other's memory, where it can only grow; by turns, or both
 * at once as the ranks of an all-reduce do. Completions are taken while there is nothing else to
 * do. */
static void pingPong(int first, int both) {
  static double times[PINGS];
  uint64_t *in = (uint64_t *)(memory + (both ? 64 : 0)), *out = (uint64_t *)(memory + OUT),
           done = 0;
  char go = 0, gone;
  exchange(&go, &gone, 1);
  for (uint64_t k = 0; k < PINGS; k++) {
    double begin = now();
    for (int turn = 0; turn < 2; turn++) {
      if (turn == (both || first)) {
        while (__atomic_load_n(in, __ATOMIC_ACQUIRE) < k + 1)
          done += reap();
        continue;
      }
      while (k - done >= DEPTH)
        done += reap();
      out[0] = k + 1;
      post(0, OUT, both ? 64 : 0, 8);
    }
    times[k] = (now() - begin) / (both ? 1 : 2);
  }
  while (done < PINGS)
    done += reap();
  double sum = 0;
  for (int k = 0; k < PINGS; k++)
    sum += times[k];
  qsort(times, PINGS, sizeof *times, byTime);
  if (first)
    printf("%s        8 bytes %7.1f us (mean), %.1f us (median), %.1f us (least), %.1f us (most)\n",
           both ? "exchange" : "latency ", sum / PINGS * 1e6, times[PINGS / 2] * 1e6,
           times[0] * 1e6, times[PINGS - 1] * 1e6);
}

int main(int argc, char **argv) {
  if (argc < 4 || argc > 5 || (qps = atoi(argv[3])) < 1 || qps > MAX_QPS) {
    fprintf(stderr, "usage: %s DEVICE GID-INDEX QPS [PEER]\n", argv[0]);
    return 2;
  }
  struct ibv_context *context = openDevice(argv[1]);
  must(context != NULL, "ibv_open_device");
  struct ibv_port_attr port;
  must(!ibv_query_port(context, 1, &port), "ibv_query_port");
  struct ibv_pd *pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 2 * DEPTH * MAX_QPS, NULL, NULL, 0);
  must(posix_memalign((void **)&memory, 4096, 2 * MAX_BYTES) == 0, "memory");
  memset(memory, 0, 2 * MAX_BYTES);
  mr = ibv_reg_mr(pd, memory, 2 * MAX_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  must(cq && mr, "ibv_reg_mr");
  for (int i = 0; i < qps; i++)
    makeQp(pd, i);
  int gidIndex = atoi(argv[2]);
  must(!ibv_query_gid(context, 1, gidIndex, &mine.gid), "ibv_query_gid");
  mine.addr = (uintptr_t)memory;
  mine.rkey = mr->rkey;
  meet(argv[4]);
  exchange(&mine, &theirs, sizeof mine);
  for (int i = 0; i < qps; i++)
    joinQp(i, port.active_mtu, gidIndex);
  char go = 0, gone;
  exchange(&go, &gone, 1);
  for (size_t bytes = 65536; bytes <= MAX_BYTES; bytes *= 4)
    bandwidth(bytes);
  for (size_t bytes = 65536; bytes <= MAX_BYTES; bytes *= 4)
    swap(bytes);
  memset(memory, 0, MAX_BYTES);
  exchange(&go, &gone, 1);
  pingPong(argv[4] != NULL, 0);
  pingPong(argv[4] != NULL, 1);
  return 0;
}
