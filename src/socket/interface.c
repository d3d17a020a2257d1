#include "socket/socket.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"

/* More addresses than any host is likely to have; the rest is not looked at. */
#define MAX_FOUND 1024

/* ---- TUTTI_SOCKET_IFNAME -------------------------------------------------------------------- */

typedef struct {
  bool exclude, exact;
  const char *names; /* "eth,ib0" */
} nameFilter;

static nameFilter parseFilter(const char *text) {
  nameFilter f = {.names = text};
  if (*f.names == '^') f.exclude = true, f.names++;
  if (*f.names == '=') f.exact = true, f.names++;
  return f;
}

/* Position of the first name of the list that `name` matches, or -1. */
static int matchPosition(const nameFilter *f, const char *name) {
  int position = 0;
  for (const char *p = f->names; *p; position++) {
    size_t length = strcspn(p, ",");
    bool match = f->exact ? strlen(name) == length && strncmp(name, p, length) == 0
                          : strncmp(name, p, length) == 0;
    if (length > 0 && match) return position;
    p += length;
    if (*p == ',') p++;
  }
  return -1;
}

/* ---- order ---------------------------------------------------------------------------------- */

static bool isLinkLocal(const tuttiAddress *a) {
  if (a->sa.sa_family == AF_INET6) return IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr);
  return (ntohl(a->v4.sin_addr.s_addr) >> 16) == 0xa9fe; /* 169.254/16 */
}

/* Networks that live inside this host: other hosts have one of the same address. */
static bool isHostOnly(const char *name) {
  return strncmp(name, "docker", 6) == 0 || strncmp(name, "virbr", 5) == 0;
}

/* Whether the list says which to use, rather than which not to. */
static bool listsWanted(const nameFilter *f) {
  return f->names[0] != '\0' && !f->exclude;
}

/* Of what the user has not named, only the best kind that is there is used. */
enum { KIND = 1 << 20 };
/* Values of orderOf. */
enum { ORDERS = 8 };

/* Among interfaces that are alike otherwise: IPv4 first, bridges later, link-local addresses last.
 */
static int orderOf(const tuttiFoundInterface *f, bool wanted) {
  int linkLocal = isLinkLocal(&f->at.address), bridge = f->bridge && !wanted;
  int v6 = f->at.address.sa.sa_family == AF_INET6;
  return 4 * linkLocal + 2 * bridge + v6;
}

/* Smaller is better; -1: not to be used. What the user named is ranked by the user's order. */
static int rankOf(const tuttiFoundInterface *f, const nameFilter *filter) {
  if (f->at.address.sa.sa_family == AF_UNSPEC || !(f->flags & IFF_UP)) return -1;
  bool listed = filter->names[0] != '\0', wanted = listsWanted(filter);
  int position = listed ? matchPosition(filter, f->at.name) : -1;
  if (listed && (position < 0) != filter->exclude) return -1;
  bool carrier = f->flags & IFF_RUNNING;
  int order = orderOf(f, wanted);
  if (wanted) return (carrier ? 0 : KIND) + ORDERS * position + order;
  if (f->flags & IFF_LOOPBACK) return 2 * KIND + order;
  return carrier && !isHostOnly(f->at.name) ? order : KIND + order;
}

typedef struct {
  int rank, index;
} ranked;

/* One address per interface, family and reach is enough. */
static bool sameKind(const tuttiFoundInterface *a, const tuttiFoundInterface *b) {
  return strcmp(a->at.name, b->at.name) == 0 &&
         a->at.address.sa.sa_family == b->at.address.sa.sa_family &&
         isLinkLocal(&a->at.address) == isLinkLocal(&b->at.address);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* An address without port. */
static const char *hostText(const tuttiAddress *a, char *buf, size_t size) {
  if (getnameinfo(&a->sa, tuttiAddressLength(a), buf, (socklen_t)size, NULL, 0, NI_NUMERICHOST) !=
      0)
    snprintf(buf, size, "no address");
  return buf;
}

static const char *stateText(unsigned flags) {
  return !(flags & IFF_UP) ? "down" : flags & IFF_RUNNING ? "up" : "no carrier";
}

/* "lo (127.0.0.1, up), eth1 (no address, down)": every interface once. */
static void listAll(const tuttiFoundInterface *found, int n, char *buf, size_t size) {
  buf[0] = '\0';
  for (int i = 0; i < n; i++) {
    int first = 0, shown = i;
    while (strcmp(found[first].at.name, found[i].at.name) != 0)
      first++;
    if (first != i) continue;
    while (shown < n && (found[shown].at.address.sa.sa_family == AF_UNSPEC ||
                         strcmp(found[shown].at.name, found[i].at.name) != 0))
      shown++;
    char host[72] = "no address";
    if (shown < n) hostText(&found[shown].at.address, host, sizeof(host));
    tuttiAppend(buf, size, "%s%s (%s, %s)", i ? ", " : "", found[i].at.name, host,
                stateText(found[i].flags));
  }
}

/* ---- the choice ----------------------------------------------------------------------------- */

static tuttiResult_t noneChosen(const tuttiFoundInterface *found, int n, const char *ifname,
                                const char *family) {
  char all[600];
  listAll(found, n, all, sizeof(all));
  if (ifname[0] == '\0' && family[0] == '\0')
    return TUTTI_FAIL(tuttiSystemError, "this host has no interface that is up; it has: %s",
                      n ? all : "none");
  const char *and = ifname[0] && family[0] ? " and " : "";
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "no interface that is up and has an address matches %s%s%s%s%s; this host has: "
                    "%s. Correct the setting or unset it",
                    ifname[0] ? "TUTTI_SOCKET_IFNAME=" : "", ifname, and,
                    family[0] ? "TUTTI_SOCKET_FAMILY=" : "", family, n ? all : "none");
}

static int familyOf(const char *text) {
  if (strcmp(text, "AF_INET") == 0) return AF_INET;
  return strcmp(text, "AF_INET6") == 0 ? AF_INET6 : AF_UNSPEC;
}

/* Puts interface `index` behind those of the same or a better rank, unless its kind is there. */
static void insert(const tuttiFoundInterface *found, int index, int rank, ranked *usable, int *n) {
  for (int i = 0; i < *n; i++)
    if (sameKind(&found[usable[i].index], &found[index])) return;
  int at = (*n)++;
  for (; at > 0 && usable[at - 1].rank > rank; at--)
    usable[at] = usable[at - 1];
  usable[at] = (ranked){rank, index};
}

tuttiResult_t tuttiInterfacesChoose(const tuttiFoundInterface *found, int nfound,
                                    const char *ifname, const char *familyText, tuttiInterface *out,
                                    int max, int *n) {
  int family = familyOf(familyText);
  nameFilter filter = parseFilter(ifname);
  ranked usable[MAX_FOUND];
  int nusable = 0, count = 0;
  for (int i = 0; i < nfound && nusable < MAX_FOUND; i++) {
    int rank = rankOf(&found[i], &filter);
    bool fits = family == AF_UNSPEC || family == found[i].at.address.sa.sa_family;
    if (rank >= 0 && fits) insert(found, i, rank, usable, &nusable);
  }
  bool wanted = listsWanted(&filter);
  for (int i = 0; i < nusable && count < max; i++)
    if (wanted || usable[i].rank / KIND == usable[0].rank / KIND)
      out[count++] = found[usable[i].index].at;
  if (count == 0) return noneChosen(found, nfound, ifname, familyText);
  *n = count;
  return tuttiSuccess;
}

/* ---- this host ------------------------------------------------------------------------------ */

static bool isBridge(const char *name) {
  char path[64];
  snprintf(path, sizeof(path), "/sys/class/net/%s/bridge", name);
  return access(path, F_OK) == 0;
}

tuttiResult_t tuttiInterfacesFind(tuttiFoundInterface **found, int *n) {
  struct ifaddrs *all;
  TUTTI_NEW(*found, MAX_FOUND, "list of interfaces", NULL);
  if (getifaddrs(&all) != 0)
    return TUTTI_FAIL_SOCKET(tuttiSystemError, errno, "cannot list this host's network interfaces");
  *n = 0;
  for (struct ifaddrs *i = all; i && *n < MAX_FOUND; i = i->ifa_next) {
    tuttiFoundInterface *f = &(*found)[(*n)++];
    snprintf(f->at.name, sizeof(f->at.name), "%s", i->ifa_name);
    f->flags = i->ifa_flags;
    f->bridge = isBridge(i->ifa_name);
    int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    if (family == AF_INET) memcpy(&f->at.address, i->ifa_addr, sizeof(f->at.address.v4));
    if (family == AF_INET6) memcpy(&f->at.address, i->ifa_addr, sizeof(f->at.address.v6));
  }
  freeifaddrs(all);
  return tuttiSuccess;
}

tuttiResult_t tuttiInterfaces(tuttiInterface *out, int max, int *n) {
  TUTTI_FREED tuttiFoundInterface *found = NULL;
  int nfound;
  TUTTI_TRY(tuttiInterfacesFind(&found, &nfound));
  return tuttiInterfacesChoose(found, nfound, tuttiSettingString(TUTTI_SETTING_SOCKET_IFNAME),
                               tuttiSettingString(TUTTI_SETTING_SOCKET_FAMILY), out, max, n);
}

const char *tuttiInterfaceOf(const tuttiAddress *local, char *buf, size_t size) {
  char host[72], other[72];
  tuttiAddress plain = *local;
  /* A dual-stack socket shows IPv4 as ::ffff:10.0.0.2; the interface knows it as 10.0.0.2. */
  if (local->sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&local->v6.sin6_addr)) {
    memset(&plain, 0, sizeof(plain));
    plain.v4.sin_family = AF_INET;
    memcpy(&plain.v4.sin_addr, &local->v6.sin6_addr.s6_addr[12], 4);
  }
  hostText(&plain, host, sizeof(host));
  snprintf(buf, size, "(%s, of no interface now)", host);
  TUTTI_FREED tuttiFoundInterface *found = NULL;
  int n;
  if (tuttiInterfacesFind(&found, &n) != tuttiSuccess) return buf;
  for (int i = 0; i < n; i++) {
    const tuttiInterface *at = &found[i].at;
    if (at->address.sa.sa_family != plain.sa.sa_family ||
        strcmp(hostText(&at->address, other, sizeof(other)), host) != 0)
      continue;
    snprintf(buf, size, "%s (%s, %s)", at->name, host, stateText(found[i].flags));
    break;
  }
  return buf;
}
