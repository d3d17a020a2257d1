#include <arpa/inet.h>

#include "bootstrap/harness.h"
#include "socket/socket.h"

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

namespace {

const unsigned UP = IFF_UP | IFF_RUNNING;

tuttiFoundInterface found(const char *name, const char *address, unsigned flags = UP,
                          bool bridge = false) {
  tuttiFoundInterface f;
  memset(&f, 0, sizeof(f));
  snprintf(f.at.name, sizeof(f.at.name), "%s", name);
  f.flags = flags;
  f.bridge = bridge;
  if (inet_pton(AF_INET, address, &f.at.address.v4.sin_addr) == 1)
    f.at.address.sa.sa_family = AF_INET;
  else if (inet_pton(AF_INET6, address, &f.at.address.v6.sin6_addr) == 1)
    f.at.address.sa.sa_family = AF_INET6;
  return f;
}

/* What is chosen, as "name family"; "error: text" when nothing is. */
std::vector<std::string> choose(const std::vector<tuttiFoundInterface> &host,
                                const char *ifname = "", const char *family = "",
                                int max = TUTTI_MAX_INTERFACES) {
  tuttiInterface out[TUTTI_MAX_INTERFACES];
  int n = -7;
  tuttiResult_t result =
      tuttiInterfacesChoose(host.data(), (int)host.size(), ifname, family, out, max, &n);
  std::vector<std::string> names;
  if (result != tuttiSuccess) {
    EXPECT_EQ(n, -7);
    return {"error " + std::to_string(result) + ": " + tuttiErrorText()};
  }
  for (int i = 0; i < n; i++)
    names.push_back(out[i].name +
                    std::string(out[i].address.sa.sa_family == AF_INET ? " 4" : " 6"));
  return names;
}

const tuttiFoundInterface lo = found("lo", "127.0.0.1", UP | IFF_LOOPBACK);
const tuttiFoundInterface lo6 = found("lo", "::1", UP | IFF_LOOPBACK);
const tuttiFoundInterface eth0 = found("eth0", "10.0.0.1");
const tuttiFoundInterface eth1 = found("eth1", "10.0.1.1");
const tuttiFoundInterface eth10 = found("eth10", "10.0.10.1");
const tuttiFoundInterface ib0 = found("ib0", "10.9.0.1");
const tuttiFoundInterface docker = found("docker0", "172.17.0.1", UP, true);

TEST(InterfaceChoice, LoopbackAndHostOnlyAreLastResorts) {
  EXPECT_THAT(choose({lo, docker, eth0, found("virbr0", "192.168.122.1")}), ElementsAre("eth0 4"));
  EXPECT_THAT(choose({lo, docker}), ElementsAre("docker0 4"));
  EXPECT_THAT(choose({lo, lo6}), ElementsAre("lo 4", "lo 6"));
  EXPECT_THAT(choose({lo, found("eth0", "10.0.0.1", IFF_UP)}), ElementsAre("eth0 4"));
}

TEST(InterfaceChoice, DownAndWithoutCarrierAreLeftOut) {
  EXPECT_THAT(choose({found("eth0", "10.0.0.1", 0), eth1}), ElementsAre("eth1 4"));
  EXPECT_THAT(choose({found("eth0", "10.0.0.1", IFF_UP), eth1}), ElementsAre("eth1 4"));
  EXPECT_THAT(choose({lo, found("eth0", "10.0.0.1", 0)}), ElementsAre("lo 4"));
  EXPECT_THAT(choose({found("eth0", ""), eth1}), ElementsAre("eth1 4"));
}

TEST(InterfaceChoice, Order) {
  EXPECT_THAT(
      choose({found("usb0", "169.254.3.4"), found("eth0", "fe80::1"), found("eth0", "2001:db8::1"),
              found("br-9f", "172.20.0.1", UP, true), eth1, eth0}),
      ElementsAre("eth1 4", "eth0 4", "eth0 6", "br-9f 4", "usb0 4", "eth0 6"));
}

TEST(InterfaceChoice, OneAddressOfAKindPerInterface) {
  EXPECT_THAT(choose({eth0, found("eth0", "10.0.0.2"), found("eth0", "2001:db8::1"),
                      found("eth0", "2001:db8::2"), found("eth0", "fe80::1")}),
              ElementsAre("eth0 4", "eth0 6", "eth0 6"));
}

TEST(InterfaceChoice, Names) {
  std::vector<tuttiFoundInterface> host = {lo, eth0, eth1, eth10, ib0, docker};
  EXPECT_THAT(choose(host, "eth1"), ElementsAre("eth1 4", "eth10 4"));
  EXPECT_THAT(choose(host, "=eth1"), ElementsAre("eth1 4"));
  EXPECT_THAT(choose(host, "ib,eth1"), ElementsAre("ib0 4", "eth1 4", "eth10 4"));
  EXPECT_THAT(choose(host, "=eth10,ib0,nosuch"), ElementsAre("eth10 4", "ib0 4"));
  EXPECT_THAT(choose(host, "^eth1"), ElementsAre("eth0 4", "ib0 4"));
  EXPECT_THAT(choose(host, "^=eth1"), ElementsAre("eth0 4", "eth10 4", "ib0 4"));
  EXPECT_THAT(choose(host, "^eth,ib"), ElementsAre("docker0 4"));
  EXPECT_THAT(choose(host, "^eth,ib,docker"), ElementsAre("lo 4"));
  EXPECT_THAT(choose(host, "docker0"), ElementsAre("docker0 4"));
  EXPECT_THAT(choose(host, "lo"), ElementsAre("lo 4"));
  EXPECT_THAT(choose(host, ",,ib0"), ElementsAre("ib0 4"));
}

TEST(InterfaceChoice, Family) {
  std::vector<tuttiFoundInterface> host = {lo, eth0, found("eth0", "2001:db8::1"), eth1};
  EXPECT_THAT(choose(host, "", "AF_INET6"), ElementsAre("eth0 6"));
  EXPECT_THAT(choose(host, "", "AF_INET"), ElementsAre("eth0 4", "eth1 4"));
  EXPECT_THAT(choose(host, "eth1", "AF_INET6")[0],
              AllOf(HasSubstr("error 4"), HasSubstr("TUTTI_SOCKET_IFNAME=eth1"),
                    HasSubstr("TUTTI_SOCKET_FAMILY=AF_INET6")));
}

TEST(InterfaceChoice, NothingMatchesListsTheInterfaces) {
  EXPECT_THAT(choose({lo, eth0, found("eth1", "", 0), found("eth1", "10.0.1.1", 0),
                      found("ib0", "10.9.0.1", IFF_UP), found("ifb0", "", 0)},
                     "mlx")[0],
              AllOf(HasSubstr("error 4"), HasSubstr("TUTTI_SOCKET_IFNAME=mlx"),
                    HasSubstr("lo (127.0.0.1, up)"), HasSubstr("eth0 (10.0.0.1, up)"),
                    HasSubstr("eth1 (10.0.1.1, down)"), HasSubstr("ib0 (10.9.0.1, no carrier)"),
                    HasSubstr("ifb0 (no address, down)")));
  EXPECT_THAT(choose({eth0, found("eth1", "10.0.1.1", 0)}, "=eth1")[0],
              HasSubstr("eth1 (10.0.1.1, down)"));
  EXPECT_THAT(choose({})[0], AllOf(HasSubstr("error 2"), HasSubstr("no interface")));
}

TEST(InterfaceChoice, NeverMoreThanAskedFor) {
  EXPECT_THAT(choose({eth0, eth1, eth10, ib0}, "", "", 2), ElementsAre("eth0 4", "eth1 4"));
  std::vector<tuttiFoundInterface> many(5000, eth0);
  for (unsigned i = 0; i < many.size(); i++)
    snprintf(many[i].at.name, sizeof(many[i].at.name), "e%u", i);
  EXPECT_EQ(choose(many).size(), (size_t)TUTTI_MAX_INTERFACES);
}

TEST(Interfaces, OfThisHost) {
  tuttiInterface out[TUTTI_MAX_INTERFACES];
  int n = 0;
  ASSERT_EQ(tuttiInterfaces(out, TUTTI_MAX_INTERFACES, &n), tuttiSuccess) << tuttiErrorText();
  ASSERT_GE(n, 1);
  for (int i = 0; i < n; i++) {
    char text[128];
    EXPECT_THAT(tuttiInterfaceOf(&out[i].address, text, sizeof(text)),
                AllOf(HasSubstr(out[i].name), HasSubstr("up")));
  }
  WithSetting wrong("TUTTI_SOCKET_IFNAME", "nosuch");
  EXPECT_EQ(tuttiInterfaces(out, TUTTI_MAX_INTERFACES, &n), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("nosuch"), HasSubstr("lo (")));
}

TEST(Interfaces, OfAnAddress) {
  tuttiAddress a;
  char text[128];
  memset(&a, 0, sizeof(a));
  a.v4.sin_family = AF_INET;
  a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_STREQ(tuttiInterfaceOf(&a, text, sizeof(text)), "lo (127.0.0.1, up)");
  a.v4.sin_addr.s_addr = htonl(0xc6336401);
  EXPECT_STREQ(tuttiInterfaceOf(&a, text, sizeof(text)), "(198.51.100.1, of no interface now)");
  memset(&a, 0, sizeof(a));
  a.v6.sin6_family = AF_INET6;
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.v6.sin6_addr);
  EXPECT_STREQ(tuttiInterfaceOf(&a, text, sizeof(text)), "lo (127.0.0.1, up)");
}

} // namespace
